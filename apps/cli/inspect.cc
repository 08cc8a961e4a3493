#include "codec/inspect.h"

#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>

#include "base/json.h"
#include "cli/choices.h"
#include "cli/command.h"
#include "cli/model_argument.h"
#include "cli/table.h"

namespace df::cli {
namespace {

struct Arguments {
  std::string path, base;
  bool choices = false, json = false;
};

constexpr char kExamples[] =
    "Examples:\n"
    "  deltafold inspect ./my-delta\n"
    "  deltafold inspect ./my-delta --choices      # what --code auto chose from\n"
    "  deltafold inspect ./my-lora --base Qwen/Qwen3-0.6B\n"
    "  deltafold inspect model.safetensors --json\n"
    "Exit code 1, with the cause, when it is refused. A model without tokenizer.json can be compressed against but "
    "not\n"
    "served: exit code 0, a warning, and \"servable\": false in the JSON.";

void PrintTable(const Inspection& inspection) {
  size_t width = 0;
  for (const auto& [name, value] : inspection.facts) width = std::max(width, name.size());
  for (const auto& [name, value] : inspection.facts) {
    std::cout << Printable(name) << std::string(width - name.size() + 2, ' ') << Printable(value) << "\n";
  }
  if (!inspection.facts.empty()) std::cout << "\n";
  if (inspection.tensors.empty()) return;
  Table table({{"tensor"}, {"code"}, {"shape"}, {"bytes", Align::kRight}});
  for (const InspectedTensor& tensor : inspection.tensors) {
    table.AddRow({tensor.name, tensor.code, ToString(tensor.shape), std::to_string(tensor.bytes)});
  }
  table.AddRule();
  table.AddRow({std::to_string(inspection.tensors.size()) + " tensors", "", "", std::to_string(inspection.bytes)});
  std::cout << table.Render();
  if (!inspection.full_bytes || inspection.bytes == 0) return;
  const double ratio = static_cast<double>(*inspection.full_bytes) / static_cast<double>(inspection.bytes);
  std::cout << "\n"
            << FormatBytes(inspection.bytes) << " in place of " << FormatBytes(*inspection.full_bytes)
            << " for a full copy: " << FormatRatio(ratio) << " smaller\n";
}

// The list that `compress` left in a delta: its codes, errors, and what `auto` chose from.
Result<Json> ReadChoices(const Inspection& inspection, const std::string& directory) {
  if (inspection.kind != "delta") return FailedPrecondition("--choices is for a delta, " + directory + " is none");
  DF_ASSIGN_OR_RETURN(const Json config, ReadJsonFile(directory + "/delta_config.json"));
  const Json* const tensors = JsonMemberOrNull(config, "tensors");
  if (tensors == nullptr) return NotFound(directory + "/delta_config.json does not say how its tensors were coded");
  return *tensors;
}

void PrintJson(const Inspection& inspection, const std::string& path, const std::optional<Json>& choices) {
  Json json = {{"path", path}, {"kind", inspection.kind}, {"servable", inspection.IsServable()}};
  if (!inspection.IsServable()) {
    const Status& problem = inspection.problem.ok() ? inspection.lack : inspection.problem;
    json["problem"] = {{"code", StatusCodeName(problem.code())}, {"message", problem.message()}};
  }
  json["facts"] = Json::object();
  for (const auto& [name, value] : inspection.facts) json["facts"][name] = value;
  json["bytes"] = inspection.bytes;
  if (inspection.full_bytes) json["full_bytes"] = *inspection.full_bytes;
  json["tensors"] = Json::array();
  for (const InspectedTensor& tensor : inspection.tensors) {
    json["tensors"].push_back(
        {{"name", tensor.name}, {"code", tensor.code}, {"shape", tensor.shape.dims()}, {"bytes", tensor.bytes}});
  }
  if (choices) json["choices"] = *choices;
  std::cout << DumpJson(json, 2) << "\n";
}

// A path as it stands; a hub id when there is no such path but such a model.
std::string PathOf(const std::string& argument) {
  std::error_code error;
  if (std::filesystem::exists(argument, error)) return argument;
  const Result<ModelArgument> model = ResolveModel(argument);
  return model.ok() ? model->directory : argument;
}

int Run(const Arguments& arguments) {
  std::shared_ptr<const Checkpoint> base;
  if (!arguments.base.empty()) {
    const Result<ModelArgument> model = ResolveModel(arguments.base);
    if (!model.ok()) return Report("inspect", FromFiles(model.status()));
    Result<std::shared_ptr<const Checkpoint>> opened = Checkpoint::Open(model->directory);
    if (!opened.ok()) return Report("inspect", FromFiles(opened.status()).Annotate("base"));
    base = *opened;
  }
  const std::string path = PathOf(arguments.path);
  const Inspection inspection = Inspect(path, base.get());
  std::optional<Json> choices;
  std::string choices_table;
  if (arguments.choices && inspection.problem.ok()) {
    Result<Json> read = ReadChoices(inspection, path);
    if (!read.ok()) return Report("inspect", FromFiles(read.status()));
    Result<std::string> table = RenderChoices(*read);
    if (!table.ok()) return Report("inspect", table.status().Annotate(path + "/delta_config.json"));
    choices = *std::move(read);
    choices_table = *std::move(table);
  }
  if (arguments.json) {
    PrintJson(inspection, arguments.path, choices);
  } else if (choices) {
    std::cout << choices_table;
  } else {
    std::cout << Printable(arguments.path) << (inspection.kind.empty() ? "" : ": " + inspection.kind) << "\n\n";
    PrintTable(inspection);
  }
  if (!inspection.problem.ok()) {
    std::cerr << "deltafold inspect: " << Printable(inspection.problem.message()) << "\n";
    return 1;
  }
  if (!inspection.lack.ok())
    std::cerr << "deltafold inspect: warning: " << Printable(inspection.lack.message()) << "\n";
  return 0;
}

}  // namespace

void AddInspect(const Command& app) {
  const Command command = app.Sub("inspect", "Show what a file or directory holds and whether it can be served");
  auto arguments = std::make_shared<Arguments>();
  command
      .Option("path", arguments->path,
              "Safetensors file or index, tokenizer.json, config.json, or directory of a model, delta or adapter")
      .Required()
      .Value("PATH");
  command.Option("--base", arguments->base, "Base model to which a delta or adapter is bound").Value("MODEL");
  command.Switch("--choices", arguments->choices,
                 "Of a delta: every tensor's code, bytes and error, and what --code auto chose from");
  command.Switch("--json", arguments->json, "Print as JSON");
  command.Footer(kExamples);
  command.OnRun([arguments] { return Run(*arguments); });
}

}  // namespace df::cli
