#include "cli/code_arguments.h"

#include <charconv>
#include <optional>

#include "cli/calibration.h"

namespace df::cli {
namespace {

// "auto" is no code but a choice.
Result<std::optional<Code>> CodeOf(const std::string& option, const std::string& text) {
  if (text == "auto") return std::optional<Code>();
  const Result<Code> code = ParseCode(text);
  if (!code.ok()) return InvalidArgument(option + ": " + code.status().message() + ", auto");
  return std::optional<Code>(*code);
}

Result<double> ErrorOf(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error == std::errc() && end == text.data() + text.size() && value >= 0 && value <= 1) return value;
  return InvalidArgument("--max-error: expected a number from 0 to 1, got \"" + text + "\"");
}

}  // namespace

void AddCodeOptions(const Command& command, CodeArguments& arguments) {
  command.Option("--code", arguments.code, "Code of the layers' matrices, see below [rank1; auto with a bound]")
      .NotEmpty()
      .Value("CODE");
  command.Option("--embeddings", arguments.embeddings, "Code of the embedding [auto; exact beside another --code]")
      .NotEmpty()
      .Value("CODE");
  command.Option("--head", arguments.head, "Code of the head, where it is not tied [auto; exact beside another --code]")
      .NotEmpty()
      .Value("CODE");
  command
      .Option("--bytes", arguments.bytes,
              "auto: bytes of everything stored: 24M, 1.5Gi, 1.35bpw (bits per weight), 12% (of the model) [1.35bpw]")
      .NotEmpty()
      .Value("AMOUNT");
  command.Option("--max-error", arguments.max_error, "auto: largest |D - D^| / |D| of any tensor, 0 to 1")
      .NotEmpty()
      .Value("E");
}

Status ReadCodes(const CodeArguments& arguments, CompressOptions& options) {
  const bool bounded = !arguments.bytes.empty() || !arguments.max_error.empty();
  const std::string code = !arguments.code.empty() ? arguments.code : bounded ? "auto" : "rank1";
  const std::string vocabulary = arguments.code.empty() || code == "auto" ? "auto" : "exact";
  options.budget_may_grow = !bounded;
  const auto or_default = [&](const std::string& given) { return given.empty() ? vocabulary : given; };
  DF_ASSIGN_OR_RETURN(options.matrices, CodeOf("--code", code));
  DF_ASSIGN_OR_RETURN(options.embeddings, CodeOf("--embeddings", or_default(arguments.embeddings)));
  DF_ASSIGN_OR_RETURN(options.head, CodeOf("--head", or_default(arguments.head)));
  if (!bounded) return Status::Ok();
  if (!arguments.bytes.empty() && !arguments.max_error.empty()) {
    return InvalidArgument("--bytes and --max-error exclude each other");
  }
  if (options.matrices && options.embeddings && options.head) {
    return InvalidArgument("--bytes and --max-error need --code auto, or --embeddings or --head auto");
  }
  if (!arguments.max_error.empty()) {
    DF_ASSIGN_OR_RETURN(options.max_error, ErrorOf(arguments.max_error));
    return Status::Ok();
  }
  const Result<Budget> budget = ParseBudget(arguments.bytes);
  if (!budget.ok()) return budget.status().Annotate("--bytes");
  options.budget = *budget;
  return Status::Ok();
}

void FitToCalibration(const CodeArguments& arguments, CompressOptions& options) {
  const bool is_random = options.calibration && options.calibration->source == kRandomSource;
  if (is_random && arguments.code.empty() && options.matrices) {
    options.matrices = Code{.sign = {.scale = ScaleKind::kRow}};
  }
}

}  // namespace df::cli
