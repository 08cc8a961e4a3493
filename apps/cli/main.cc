#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <new>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "cli/command.h"
#include "cli/nearest.h"
#include "cli/table.h"
#include "kernels/target.h"

namespace df::cli {
namespace {

// What stands here in the place of a flag of vLLM's; empty for others.
std::string InsteadOf(const std::string& flag) {
  for (const char* unneeded : {"--max-loras", "--max-cpu-loras", "--max-lora-rank"}) {
    if (flag == unneeded) {
      return "not needed here: any number of variants of any rank is served; --variant-bytes bounds their memory";
    }
  }
  return "";
}

// The innermost command that the words led to: `bench kernels` is one of `bench`.
CLI::App& ParsedCommand(CLI::App& app) {
  const auto parsed = app.get_subcommands();
  return parsed.empty() ? app : ParsedCommand(*parsed.front());
}

// "bench kernels "; empty for the program itself.
std::string PathOf(const CLI::App& app, const CLI::App& command) {
  return &command == &app ? "" : PathOf(app, *command.get_parent()) + command.get_name() + " ";
}

int ReportUsage(CLI::App& app, const CLI::Error& error) {
  CLI::App& command = ParsedCommand(app);
  const std::vector<std::string> extras = command.remaining(true);
  const bool takes_command = !command.get_subcommands([](CLI::App*) { return true; }).empty();
  const bool unknown_command = takes_command && !extras.empty() && !extras.front().starts_with("-");
  std::cerr << "deltafold: " << (unknown_command ? "unknown command " + extras.front() : error.what()) << "\n";
  std::vector<std::string> offered;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) offered.push_back("--" + name);
  }
  for (const CLI::App* sub : command.get_subcommands([](CLI::App*) { return true; }))
    offered.push_back(sub->get_name());
  for (const std::string& extra : extras) {
    const std::string word = extra.substr(0, extra.find('='));
    const std::string instead = command.get_name() == "serve" ? InsteadOf(word) : "";
    const std::string near = Nearest(word, offered);
    if (!instead.empty()) {
      std::cerr << "  " << word << " is " << instead << "\n";
    } else if (!near.empty()) {
      std::cerr << "  did you mean " << near << "?\n";
    }
  }
  std::cerr << "  see: deltafold " << PathOf(app, command) << "--help\n";
  return 2;
}

// 1 for a success whose report was lost, `exit_code` otherwise.
int WithOutputChecked(int exit_code) {
  std::cout.flush();
  const bool lost = !std::cout || std::fflush(stdout) != 0 || std::ferror(stdout) != 0;
  if (exit_code != 0 || !lost) return exit_code;
  std::cerr << "deltafold: cannot write to standard output: is the disk full?\n";
  return 1;
}

}  // namespace

int Report(std::string_view command, const Status& status) {
  if (status.ok()) return 0;
  std::cerr << "deltafold " << command << ": ";
  std::istringstream lines(status.message());  // several where a command's output is repeated
  for (std::string line; std::getline(lines, line);) std::cerr << Printable(line) << "\n";
  return status.code() == StatusCode::kInvalidArgument ? 2 : 1;
}

Status CheckOutFree(const std::string& out, bool replace) {
  std::error_code ignored;  // an unreadable path fails later with its own message
  if (replace || !std::filesystem::exists(std::filesystem::symlink_status(out, ignored))) return Status::Ok();
  return FailedPrecondition(out + " exists already; choose another --out or replace it with --force");
}

int Main(int argc, char** argv) {
  CLI::App app{"deltafold: a family of fine-tuned models from one copy of the base weights"};
  app.name("deltafold");
  app.require_subcommand(1);
  if (const int failed = Report("start", kernels::SetTargetFromEnvironment()); failed != 0) return failed;
  int exit_code = 0;
  const Command commands(app, exit_code);
  AddCompress(commands);
  AddInspect(commands);
  AddMaterialize(commands);
  AddMerge(commands);
  AddImport(commands);
  AddExport(commands);
  AddVerify(commands);
  AddRun(commands);
  AddChat(commands);
  AddServe(commands);
  AddSoup(commands);
  AddVariants(commands);
  AddLogits(commands);
  AddEval(commands);
  AddPlan(commands);
  AddPool(commands);
  AddBench(commands);
  AddVersion(commands);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    const CLI::App& command = ParsedCommand(app);
    const bool is_sub = &command != &app;
    std::string before = "deltafold " + (is_sub ? PathOf(app, *command.get_parent()) : "");
    before.pop_back();
    std::cout << (is_sub ? command.help(before) : app.help());
    return WithOutputChecked(0);
  } catch (const CLI::ParseError& error) {
    return ReportUsage(app, error);
  } catch (const std::bad_alloc&) {
    std::cerr << "deltafold: out of memory; free some, lift the limit, or serve fewer variants\n";
    return 1;
  } catch (const std::system_error& error) {  // a thread that cannot be started
    std::cerr << "deltafold: " << error.what() << "; lift the limits of memory or processes\n";
    return 1;
  }
  // A server's answers go elsewhere.
  return app.got_subcommand("serve") ? exit_code : WithOutputChecked(exit_code);
}

}  // namespace df::cli

int main(int argc, char** argv) { return df::cli::Main(argc, argv); }
