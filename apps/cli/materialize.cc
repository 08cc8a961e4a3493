#include "codec/materialize.h"

#include <iostream>
#include <map>
#include <memory>

#include "base/json.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/model_argument.h"
#include "cli/progress.h"
#include "cli/table.h"

namespace df::cli {
namespace {

struct Arguments {
  std::string base, delta, out;
  std::string dtype = "base";
  MaterializeOptions options;
  size_t n_threads = 0;
  bool json = false;
};

constexpr char kExamples[] =
    "Examples:\n"
    "  deltafold materialize --base Qwen/Qwen3-0.6B --delta ./my-delta --out ./my-full-model\n"
    "  deltafold materialize --base base --delta lora-adapter --out merged --dtype f32";

const std::map<std::string, std::optional<DType>> kDTypes = {
    {"base", std::nullopt}, {"bf16", DType::kBf16}, {"f16", DType::kF16}, {"f32", DType::kF32}};

Result<MaterializeReport> MaterializeWithProgress(const Arguments& arguments) {
  MaterializeOptions options = arguments.options;
  options.dtype = kDTypes.at(arguments.dtype);
  DF_ASSIGN_OR_RETURN(const ModelArgument base, ResolveModel(arguments.base));
  DF_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(base.directory));
  const InterruptGuard interrupt;
  Progress progress("materialize");
  options.on_progress = [&](const StreamProgress& done) {
    progress.Update({done.done_bytes, done.n_bytes, done.done_tensors, done.n_tensors});
    return !interrupt.Interrupted();
  };
  ThreadPool pool(arguments.n_threads > 0 ? arguments.n_threads : UsableCpus());
  return Materialize(pool, *checkpoint, arguments.delta, arguments.out, options);
}

int Run(const Arguments& arguments) {
  const Result<MaterializeReport> report = MaterializeWithProgress(arguments);
  if (!report.ok()) return Report("materialize", FromFiles(report.status()));
  if (arguments.json) {
    const Json json = {
        {"out", arguments.out}, {"tensors", report->n_tensors}, {"shards", report->n_shards}, {"bytes", report->bytes}};
    std::cout << DumpJson(json, 2) << "\n";
  } else {
    std::cout << arguments.out << ": " << report->n_tensors << " tensors, " << FormatBytes(report->bytes) << " in "
              << report->n_shards << (report->n_shards == 1 ? " file\n" : " files\n");
  }
  return 0;
}

}  // namespace

void AddMaterialize(const Command& app) {
  const Command command = app.Sub("materialize", "Turn base and delta (or LoRA adapter) back into a full checkpoint");
  auto arguments = std::make_shared<Arguments>();
  command.Option("--base", arguments->base, "Base model: directory, or hub id in the local cache")
      .Required()
      .Value("MODEL");
  command.Option("--delta,--variant", arguments->delta, "Delta or adapter directory").Required().Value("DIR");
  command.Option("--out,-o", arguments->out, "Model directory to write; appears whole or not at all")
      .Required()
      .NotEmpty()
      .Value("DIR");
  command.Option("--dtype", arguments->dtype, "Stored element type: base (as there), bf16, f16, f32 [base]")
      .OneOf({"base", "bf16", "f16", "f32"})
      .Value("TYPE");
  command.Option("--max-shard-bytes", arguments->options.max_shard_bytes, "Start a new file beyond [5000000000]")
      .Range(1'000'000, uint64_t{1} << 50)
      .Value("BYTES");
  command.Option("--threads", arguments->n_threads, "Threads [all usable]").Range(1, 1024).Value("N");
  command.Switch("--force", arguments->options.replace, "Replace an existing --out");
  command.Switch("--json", arguments->json, "Print the report as JSON");
  command.Footer(kExamples);
  command.OnRun([arguments] { return Run(*arguments); });
}

}  // namespace df::cli
