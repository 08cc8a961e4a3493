#include <iostream>
#include <iterator>
#include <memory>

#include "base/clock.h"
#include "cli/command.h"
#include "cli/family.h"

namespace df::cli {
namespace {

struct RunOptions {
  FamilyOptions family;
  SamplingOptions sampling;
  std::string prompt;  // empty: from stdin
  std::string system;
  std::vector<std::string> stop;
  bool raw = false;
  bool json = false;
};

struct Answer {
  std::string text;
  TextDelta end;
  Usage usage;
  int64_t start_us = 0, first_us = 0, end_us = 0;
};

TextRequest RequestFor(const RunOptions& options, std::shared_ptr<const Variant> variant) {
  TextRequest request;
  request.id = "run";
  request.params = SamplingFor(*variant, options.sampling);
  request.stop = options.stop;
  request.variant = std::move(variant);
  if (options.raw) {
    request.prompt = options.prompt;
    return request;
  }
  Json messages = Json::array();
  if (!options.system.empty()) messages.push_back({{"role", "system"}, {"content", options.system}});
  messages.push_back({{"role", "user"}, {"content", options.prompt}});
  request.prompt = std::move(messages);
  return request;
}

// `show` prints the text as it comes.
Result<Answer> Generate(Engine& engine, TextRequest request, bool show) {
  const SteadyClock clock;
  Answer answer;
  answer.start_us = clock.NowUs();
  DF_ASSIGN_OR_RETURN(const auto stream, StartText(engine, std::move(request), {}));
  while (!answer.end.finish) {
    for (TextDelta& delta : stream->TakeAllBlocking()) {
      if (answer.first_us == 0) answer.first_us = clock.NowUs();
      if (show) std::cout << delta.text << std::flush;
      answer.text += delta.text;
      if (delta.finish) answer.end = std::move(delta);
    }
  }
  answer.end_us = clock.NowUs();
  answer.usage = stream->usage();
  DF_RETURN_IF_ERROR(answer.end.status);
  return answer;
}

Json Report(const Answer& answer, const Variant& variant) {
  const double decode_s = static_cast<double>(answer.end_us - answer.first_us) * 1e-6;
  const double n_decoded = static_cast<double>(answer.usage.completion_tokens) - 1.0;
  Json report;
  report["model"] = variant.name;
  report["kind"] = variant.KindName();
  report["answer"] = answer.text;
  report["finish_reason"] = FinishReasonName(*answer.end.finish);
  report["prompt_tokens"] = answer.usage.prompt_tokens;
  report["completion_tokens"] = answer.usage.completion_tokens;
  report["ttft_ms"] = static_cast<double>(answer.first_us - answer.start_us) * 1e-3;
  report["tokens_per_second"] = decode_s > 0.0 ? n_decoded / decode_s : 0.0;
  return report;
}

Status Run(RunOptions& options) {
  if (options.prompt.empty()) {
    options.prompt.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  DF_ASSIGN_OR_RETURN(const Family family, LoadFamily(options.family));
  DF_ASSIGN_OR_RETURN(const auto engine, StartEngine(options.family, family));
  DF_ASSIGN_OR_RETURN(const Answer answer, Generate(*engine, RequestFor(options, family.chosen), !options.json));
  std::cout << (options.json ? DumpJson(Report(answer, *family.chosen), 2) : "") << std::endl;
  return Status::Ok();
}

}  // namespace

void AddRun(const Command& app) {
  const Command command = app.Sub("run", "Answer one prompt");
  const auto options = std::make_shared<RunOptions>();
  AddFamilyOptions(command, options->family);
  AddSamplingOptions(command, options->sampling);
  command.Option("prompt", options->prompt, "What to ask; without it, standard input is read");
  command.Option("--system", options->system, "A system message in front");
  command.Option("--stop", options->stop, "End the answer before this text (repeatable)").OneValueEach();
  command.Switch("--raw", options->raw, "The prompt is the whole model input: no chat template");
  command.Switch("--json", options->json,
                 "Print one JSON object: answer, tokens, time to first token, tokens per second");
  command.Footer(
      "Examples:\n"
      "  deltafold run --model ./zen-mini-base \"What is 61 + 10?\"\n"
      "  deltafold run --model ./zen-mini-base --variant math=./math-delta --temperature 0 \"What is 61 + 10?\"\n"
      "  echo \"Once upon a time\" | deltafold run --model org/name --raw --max-tokens 40");
  command.OnRun([options] { return cli::Report("run", Run(*options)); });
}

}  // namespace df::cli
