#include "cli/flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <utility>

#include "cli/table.h"

namespace df::cli {
namespace {

struct NumberForm {
  uint64_t min = 0;
  uint64_t max = UINT64_MAX;
  bool with_unit = false;  // letters may follow: "4GB"
};

// A whole decimal number. (CLI11 itself takes "-1" for 18446744073709551615 and "010" for 8.)
CLI::Validator WholeNumber(NumberForm form) {
  const auto check = [form](std::string& text) -> std::string {
    uint64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    const bool has_leading_zero = rest - text.data() > 1 && text[0] == '0';
    const auto is_letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; };
    const bool is_whole = rest == end || (form.with_unit && std::all_of(rest, end, is_letter));
    if (error == std::errc::result_out_of_range || value > form.max) {
      return "must be at most " + std::to_string(form.max) + ", got " + Printable(text);
    }
    if (error != std::errc() || has_leading_zero || !is_whole) {
      return "must be a whole number of 0 or more" + std::string(form.with_unit ? ", with or without a unit" : "") +
             ", got \"" + Printable(text) + "\"";
    }
    if (value < form.min) return "must be at least " + std::to_string(form.min) + ", got " + Printable(text);
    return "";
  };
  return CLI::Validator(check, "", "WholeNumber");
}

template <typename T>
OptionRef Add(CLI::App& app, const std::string& name, T& value, const std::string& help) {
  return OptionRef(app.add_option(name, value, help));
}

// (CLI11 itself takes "" for no value: what a script's empty variable gives would be the default.)
template <typename T>
OptionRef AddNumber(CLI::App& app, const std::string& name, T& value, const std::string& help) {
  return Add(app, name, value, help).NotEmpty();
}

template <typename T>
OptionRef AddCount(CLI::App& app, const std::string& name, T& value, const std::string& help,
                   uint64_t max = UINT64_MAX) {
  return OptionRef(app.add_option(name, value, help)->check(WholeNumber({.max = max})));
}

}  // namespace

OptionRef& OptionRef::Required() {
  option_->required();
  return *this;
}

OptionRef& OptionRef::Value(const std::string& text) {
  option_->option_text(text);
  return *this;
}

OptionRef& OptionRef::TypeName(const std::string& text) {
  option_->type_name(text);
  return *this;
}

OptionRef& OptionRef::Env(const std::string& variable) {
  option_->envname(variable);
  return *this;
}

OptionRef& OptionRef::ShowDefault() {
  option_->capture_default_str();
  return *this;
}

OptionRef& OptionRef::NotEmpty() {
  const auto check = [](std::string& text) { return std::string(text.empty() ? "must not be empty" : ""); };
  option_->check(CLI::Validator(check, "", "NotEmpty"));
  return *this;
}

OptionRef& OptionRef::Range(uint64_t min, uint64_t max) {
  option_->check(WholeNumber({.min = min, .max = max}));
  return *this;
}

OptionRef& OptionRef::OneOf(const std::vector<std::string>& values) {
  option_->check(CLI::IsMember(values));
  return *this;
}

OptionRef& OptionRef::OneValueEach() {
  option_->allow_extra_args(false);
  return *this;
}

OptionRef& OptionRef::SplitAtCommas() {
  option_->delimiter(',');
  return *this;
}

Command Command::Sub(const std::string& name, const std::string& description) const {
  return Command(*app_->add_subcommand(name, description), *exit_code_);
}

void Command::RequireSub() const { app_->require_subcommand(1); }

OptionRef Command::Option(const std::string& name, std::string& value, const std::string& help) const {
  return Add(*app_, name, value, help);
}
OptionRef Command::Option(const std::string& name, std::vector<std::string>& value, const std::string& help) const {
  return Add(*app_, name, value, help);
}
OptionRef Command::Option(const std::string& name, uint16_t& value, const std::string& help) const {
  return AddCount(*app_, name, value, help, UINT16_MAX);
}
OptionRef Command::Option(const std::string& name, uint64_t& value, const std::string& help) const {
  return AddCount(*app_, name, value, help);
}
OptionRef Command::Option(const std::string& name, std::vector<uint64_t>& value, const std::string& help) const {
  return AddCount(*app_, name, value, help);
}
OptionRef Command::Option(const std::string& name, std::optional<uint64_t>& value, const std::string& help) const {
  return AddCount(*app_, name, value, help);
}
OptionRef Command::Option(const std::string& name, int64_t& value, const std::string& help) const {
  return AddNumber(*app_, name, value, help);
}
OptionRef Command::Option(const std::string& name, std::optional<int32_t>& value, const std::string& help) const {
  return AddNumber(*app_, name, value, help);
}
OptionRef Command::Option(const std::string& name, double& value, const std::string& help) const {
  return AddNumber(*app_, name, value, help);
}
OptionRef Command::Option(const std::string& name, std::optional<double>& value, const std::string& help) const {
  return AddNumber(*app_, name, value, help);
}

OptionRef Command::Bytes(const std::string& name, uint64_t& value, const std::string& help) const {
  // Transformations run in the reverse order.
  return OptionRef(app_->add_option(name, value, help)
                       ->transform(CLI::AsSizeValue(false))
                       ->transform(WholeNumber({.with_unit = true})));
}

OptionRef Command::Switch(const std::string& name, bool& value, const std::string& help) const {
  return OptionRef(app_->add_flag(name, value, help));
}

OptionRef Command::ChoiceOfNumber(const std::string& name, std::map<std::string, int> values,
                                  std::function<void(int)> set, const std::string& help) const {
  const auto take = [name, values = std::move(values), set = std::move(set)](const std::string& given) {
    const auto found = values.find(CLI::detail::to_lower(given));
    if (found != values.end()) return set(found->second);
    std::string known;
    for (const auto& [word, number] : values) known += (known.empty() ? "" : ", ") + word;
    throw CLI::ValidationError(name, "must be one of " + known + "; got \"" + Printable(given) + "\"");
  };
  return OptionRef(app_->add_option_function<std::string>(name, take, help));
}

void Command::Footer(const std::string& text) const { app_->footer(text); }

void Command::OnRun(std::function<int()> run) const {
  app_->callback([run = std::move(run), exit_code = exit_code_] { *exit_code = run(); });
}

}  // namespace df::cli
