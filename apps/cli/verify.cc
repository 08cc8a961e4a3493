#include "codec/verify.h"

#include <iostream>
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
  std::string delta, base, model;
  size_t n_threads = 0;
  bool json = false;
};

constexpr char kExamples[] =
    "Examples:\n"
    "  deltafold verify ./my-delta --base Qwen/Qwen3-0.6B\n"
    "  deltafold verify ./my-delta --base Qwen/Qwen3-0.6B --model ./my-finetune\n"
    "Exit code 0 only when the delta is sound and was made for this base.";

Result<VerifyReport> VerifyWithProgress(const Arguments& arguments) {
  DF_ASSIGN_OR_RETURN(const ModelArgument base, ResolveModel(arguments.base));
  DF_ASSIGN_OR_RETURN(const auto base_checkpoint, Checkpoint::Open(base.directory));
  std::shared_ptr<const Checkpoint> fine_tune;
  if (!arguments.model.empty()) {
    DF_ASSIGN_OR_RETURN(const ModelArgument model, ResolveModel(arguments.model));
    DF_ASSIGN_OR_RETURN(fine_tune, Checkpoint::Open(model.directory));
  }
  const InterruptGuard interrupt;
  Progress progress("verify");
  ThreadPool pool(arguments.n_threads > 0 ? arguments.n_threads : UsableCpus());
  return Verify(pool, *base_checkpoint, arguments.delta, fine_tune.get(), [&](const StreamProgress& done) {
    progress.Update({done.done_bytes, done.n_bytes, done.done_tensors, done.n_tensors});
    return !interrupt.Interrupted();
  });
}

void PrintTable(const VerifyReport& report) {
  Table table({{"tensor"},
               {"code"},
               {"shape"},
               {"bytes", Align::kRight},
               {"error", Align::kRight},
               {"cosine", Align::kRight},
               {"max error", Align::kRight}});
  for (const VerifiedWeight& weight : report.weights) {
    const bool measured = weight.quality.has_value();
    table.AddRow({weight.name, weight.code, ToString(weight.shape), std::to_string(weight.bytes),
                  measured ? FormatFixed(weight.quality->relative_frobenius, 4) : "",
                  measured ? FormatFixed(weight.quality->cosine, 4) : "",
                  measured ? FormatFixed(weight.quality->max_abs_error, 6) : ""});
  }
  std::cout << table.Render() << "\n";
  if (!report.base_fingerprint.empty()) std::cout << "base fingerprint  " << report.base_fingerprint << "  matches\n";
  std::cout << "content digest    " << report.content_digest << "  intact\n"
            << "structure         every part has its place\n";
  if (report.mean_relative_frobenius) {
    std::cout << "mean error        " << FormatFixed(*report.mean_relative_frobenius, 4)
              << "  |D - D^| / |D| over the changed matrices\n";
  }
}

void PrintJson(const VerifyReport& report) {
  Json json = {{"ok", true}, {"base_fingerprint", report.base_fingerprint}, {"content_digest", report.content_digest}};
  if (report.mean_relative_frobenius) json["mean_relative_frobenius"] = *report.mean_relative_frobenius;
  json["tensors"] = Json::array();
  for (const VerifiedWeight& weight : report.weights) {
    Json entry = {
        {"name", weight.name}, {"code", weight.code}, {"shape", weight.shape.dims()}, {"bytes", weight.bytes}};
    if (weight.quality) {
      entry["relative_frobenius"] = weight.quality->relative_frobenius;
      entry["cosine"] = weight.quality->cosine;
      entry["max_abs_error"] = weight.quality->max_abs_error;
    }
    json["tensors"].push_back(std::move(entry));
  }
  std::cout << DumpJson(json, 2) << "\n";
}

int Run(const Arguments& arguments) {
  const Result<VerifyReport> report = VerifyWithProgress(arguments);
  if (!report.ok()) return Report("verify", FromFiles(report.status()));
  if (arguments.json) {
    PrintJson(*report);
  } else {
    PrintTable(*report);
  }
  return 0;
}

}  // namespace

void AddVerify(const Command& app) {
  const Command command = app.Sub("verify", "Check a delta: its base, its bytes, its parts, its errors");
  auto arguments = std::make_shared<Arguments>();
  command.Option("delta,--delta", arguments->delta, "Delta or adapter directory").Required().Value("DIR");
  command.Option("--base", arguments->base, "Base model: directory, or hub id in the local cache")
      .Required()
      .Value("MODEL");
  command.Option("--model,--finetune", arguments->model, "Full fine-tune: measure the errors of every tensor")
      .Value("MODEL");
  command.Option("--threads", arguments->n_threads, "Threads [all usable]").Range(1, 1024).Value("N");
  command.Switch("--json", arguments->json, "Print the report as JSON");
  command.Footer(kExamples);
  command.OnRun([arguments] { return Run(*arguments); });
}

}  // namespace df::cli
