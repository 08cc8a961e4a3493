// What a sub-command takes from its command line, without the parser behind it: CLI11 stays in flags.cc and main.cc,
// for its definitions cost 15 s of compilation a file.
//
//   Command compress = app.Sub("compress", "Compress a fine-tune ...");
//   compress.Option("--out,-o", arguments->out, "Delta directory to write").Required().Value("DIR");
//   compress.OnRun([arguments] { return Run(*arguments); });
#ifndef DELTAFOLD_CLI_FLAGS_H_
#define DELTAFOLD_CLI_FLAGS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace df::cli {

// An option that was added; each call sets one property and returns it for the next.
class OptionRef {
 public:
  explicit OptionRef(CLI::Option* option) : option_(option) {}

  OptionRef& Required();
  OptionRef& Value(const std::string& text);     // what stands for its value in --help, instead of type and default
  OptionRef& TypeName(const std::string& text);  // the type's name in --help
  OptionRef& Env(const std::string& variable);   // read where the command line has none
  OptionRef& ShowDefault();
  OptionRef& NotEmpty();
  OptionRef& Range(uint64_t min, uint64_t max);
  OptionRef& OneOf(const std::vector<std::string>& values);
  OptionRef& OneValueEach();  // repeatable, a value each time
  OptionRef& SplitAtCommas();

 private:
  CLI::Option* option_;
};

// A sub-command. `name` lists the spellings: "base,--base" is a positional that can be named as well. Every `value`
// must outlive the parse; it keeps its default where the option is absent. Unsigned numbers are read strictly: decimal,
// no sign, no leading zero.
class Command {
 public:
  // `exit_code` gets what the command that was run returned.
  Command(CLI::App& app, int& exit_code) : app_(&app), exit_code_(&exit_code) {}

  Command Sub(const std::string& name, const std::string& description) const;
  void RequireSub() const;

  OptionRef Option(const std::string& name, std::string& value, const std::string& help) const;
  OptionRef Option(const std::string& name, std::vector<std::string>& value, const std::string& help) const;
  OptionRef Option(const std::string& name, uint16_t& value, const std::string& help) const;
  OptionRef Option(const std::string& name, uint64_t& value, const std::string& help) const;
  OptionRef Option(const std::string& name, std::vector<uint64_t>& value, const std::string& help) const;
  OptionRef Option(const std::string& name, std::optional<uint64_t>& value, const std::string& help) const;
  OptionRef Option(const std::string& name, int64_t& value, const std::string& help) const;
  OptionRef Option(const std::string& name, std::optional<int32_t>& value, const std::string& help) const;
  OptionRef Option(const std::string& name, double& value, const std::string& help) const;
  OptionRef Option(const std::string& name, std::optional<double>& value, const std::string& help) const;
  // A number of bytes, which may have a unit: "4GB" = 4 * 1024^3.
  OptionRef Bytes(const std::string& name, uint64_t& value, const std::string& help) const;
  OptionRef Switch(const std::string& name, bool& value, const std::string& help) const;

  // One of the names of an enumeration, in any case.
  template <typename Enum>
  OptionRef Choice(const std::string& name, const std::map<std::string, Enum>& values, Enum& value,
                   const std::string& help) const {
    std::map<std::string, int> numbers;
    for (const auto& [word, which] : values) numbers[word] = static_cast<int>(which);
    return ChoiceOfNumber(name, std::move(numbers), [&value](int which) { value = static_cast<Enum>(which); }, help);
  }

  void Footer(const std::string& text) const;
  void OnRun(std::function<int()> run) const;

 private:
  OptionRef ChoiceOfNumber(const std::string& name, std::map<std::string, int> values, std::function<void(int)> set,
                           const std::string& help) const;

  CLI::App* app_;
  int* exit_code_;
};

}  // namespace df::cli

#endif  // DELTAFOLD_CLI_FLAGS_H_
