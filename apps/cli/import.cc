#include <iostream>
#include <memory>

#include "base/json.h"
#include "cli/command.h"
#include "cli/model_argument.h"
#include "cli/table.h"
#include "codec/import_bitdelta.h"

namespace df::cli {
namespace {

struct Arguments {
  std::string base, source, out;
  std::string model;
  ImportOptions options;
  size_t n_threads = 0;
  bool json = false;
};

constexpr char kExamples[] =
    "SOURCE is a released BitDelta file: diff.pt as torch.save wrote it, or the same tensors in safetensors. It is "
    "read as "
    "data; nothing in it is run.\n"
    "It does not name its base: give the one it was taken against, and measure with verify --model or serve.\n"
    "Examples:\n"
    "  deltafold import --base meta-llama/Llama-2-7b-hf --from diff.pt --out ./my-delta\n"
    "  deltafold import --base base --from diff.safetensors --model finetune --out ./my-delta\n"
    "Then: deltafold verify ./my-delta --base meta-llama/Llama-2-7b-hf";

Result<ImportReport> Import(const Arguments& arguments) {
  ImportOptions options = arguments.options;
  DF_ASSIGN_OR_RETURN(const ModelArgument base, ResolveModel(arguments.base));
  DF_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(base.directory));
  if (!arguments.model.empty()) {
    DF_ASSIGN_OR_RETURN(const ModelArgument model, ResolveModel(arguments.model));
    options.config_directory = model.directory;
  }
  options.base_name = base.name;
  options.source_name = arguments.source.substr(arguments.source.rfind('/') + 1);
  ThreadPool pool(arguments.n_threads > 0 ? arguments.n_threads : UsableCpus());
  return ImportBitDelta(pool, *checkpoint, arguments.source, arguments.out, options);
}

int Run(const Arguments& arguments) {
  const Result<ImportReport> report = Import(arguments);
  if (!report.ok()) return Report("import", FromFiles(report.status()));
  if (arguments.json) {
    const Json json = {{"out", arguments.out},
                       {"signs", report->n_signs},
                       {"full", report->n_full},
                       {"unchanged", report->n_unchanged},
                       {"file_bytes", report->file_bytes},
                       {"delta_bytes", report->delta_bytes},
                       {"base_fingerprint", report->base_fingerprint}};
    std::cout << DumpJson(json, 2) << "\n";
  } else {
    std::cout << arguments.out << ": " << report->n_signs << " matrices of signs, " << report->n_full
              << " other parameters, " << report->n_unchanged << " unchanged and not stored; "
              << FormatBytes(report->delta_bytes) << " of " << FormatBytes(report->file_bytes) << "\n";
  }
  return 0;
}

}  // namespace

void AddImport(const Command& app) {
  const Command command = app.Sub("import", "Turn a released BitDelta file into a delta directory");
  auto arguments = std::make_shared<Arguments>();
  command.Option("--base", arguments->base, "The base it was taken against: directory, or hub id in the local cache")
      .Required()
      .Value("MODEL");
  command.Option("--from", arguments->source, "diff.pt, or the same tensors in safetensors").Required().Value("SOURCE");
  command.Option("--out,-o", arguments->out, "Delta directory to write; appears whole or not at all")
      .Required()
      .NotEmpty()
      .Value("DIR");
  command.Option("--model", arguments->model, "Where the fine-tune's config.json and tokenizer are [the base]")
      .Value("MODEL");
  command.Option("--threads", arguments->n_threads, "Threads [all usable]").Range(1, 1024).Value("N");
  command.Switch("--force", arguments->options.replace, "Replace an existing --out");
  command.Switch("--json", arguments->json, "Print the report as JSON");
  command.Footer(kExamples);
  command.OnRun([arguments] { return Run(*arguments); });
}

}  // namespace df::cli
