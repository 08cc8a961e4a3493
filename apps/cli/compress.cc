#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "cli/command.h"
#include "cli/interrupt.h"
#include "cli/model_argument.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "codec/compressor.h"

namespace df::cli {
namespace {

struct Arguments {
  std::string base, model, out;
  CompressOptions options;
  size_t n_threads = 0;
  bool json = false;
};

constexpr char kExamples[] =
    "Examples:\n"
    "  deltafold compress --base Qwen/Qwen3-0.6B --model ./my-finetune --out ./my-delta\n"
    "  deltafold compress --base base --model finetune --out delta --scale row --planes 2\n"
    "  deltafold compress base finetune delta --embeddings sign --embedding-planes 2\n"
    "Then: deltafold verify ./my-delta --base Qwen/Qwen3-0.6B --model ./my-finetune";

const std::map<std::string, ScaleKind> kScales = {
    {"scalar", ScaleKind::kScalar}, {"row", ScaleKind::kRow}, {"rank1", ScaleKind::kRank1}};
const std::map<std::string, VocabularyCode> kVocabularyCodes = {{"auto", VocabularyCode::kAuto},
                                                                {"raw", VocabularyCode::kRaw},
                                                                {"rows", VocabularyCode::kRows},
                                                                {"sign", VocabularyCode::kSign}};

// One line of the summary: all weights of one kind.
void AddKind(Table& table, const std::string& title, SlotKind kind, const CompressReport& report) {
  std::map<std::string, size_t> codes;
  uint64_t bytes = 0, full_bytes = 0;
  double error = 0;
  size_t n = 0;
  for (const WeightReport& weight : report.weights) {
    if (weight.kind != kind) continue;
    ++codes[weight.code];
    bytes += weight.bytes;
    full_bytes += weight.full_bytes;
    error += weight.quality.relative_frobenius;
    ++n;
  }
  if (n == 0) return;
  const auto most =
      std::max_element(codes.begin(), codes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const std::string code = most->first + (codes.size() > 1 ? " and others" : "");
  table.AddRow({title, std::to_string(n), code, FormatBytes(full_bytes), FormatBytes(bytes),
                FormatPercent(static_cast<double>(bytes) / static_cast<double>(std::max<uint64_t>(full_bytes, 1))),
                error == 0 ? "exact" : FormatFixed(error / static_cast<double>(n), 4)});
}

void PrintSummary(const CompressReport& report, const Arguments& arguments, double seconds) {
  Table table({{"weights"},
               {"count", Align::kRight},
               {"code"},
               {"full", Align::kRight},
               {"delta", Align::kRight},
               {"share", Align::kRight},
               {"mean error", Align::kRight}});
  AddKind(table, "embedding", SlotKind::kEmbedding, report);
  AddKind(table, "matrices", SlotKind::kMatrix, report);
  AddKind(table, "norms, biases", SlotKind::kVector, report);
  AddKind(table, "head", SlotKind::kHead, report);
  const auto full = static_cast<double>(std::max<uint64_t>(report.full_bytes, 1));
  table.AddRule();
  table.AddRow({"all", std::to_string(report.weights.size()), std::to_string(report.n_unchanged) + " unchanged",
                FormatBytes(report.full_bytes), FormatBytes(report.delta_bytes),
                FormatPercent(static_cast<double>(report.delta_bytes) / full), ""});
  std::cout << table.Render() << "\n" << arguments.out << ": ";
  if (report.delta_bytes == 0) {
    std::cout << "no weight differs from the base\n";
    return;
  }
  std::cout << FormatBytes(report.delta_bytes) << ", " << FormatRatio(full / static_cast<double>(report.delta_bytes))
            << " smaller than the fine-tune, in " << FormatDuration(seconds) << " ("
            << FormatBytes(static_cast<uint64_t>(full / std::max(seconds, 1e-9))) << "/s of fine-tune)\n"
            << "error = |D - D^| / |D| of the differences to the base\n";
}

void PrintJson(const CompressReport& report, const Arguments& arguments, double seconds) {
  Json json = {{"out", arguments.out},
               {"base_fingerprint", report.base_fingerprint},
               {"files", report.files},
               {"seconds", seconds}};
  json.update(ToJson(report, arguments.options));
  std::cout << DumpJson(json, 2) << "\n";
}

Result<CompressReport> CompressWithProgress(const Arguments& arguments) {
  CompressOptions options = arguments.options;
  DF_ASSIGN_OR_RETURN(const ModelArgument base, ResolveModel(arguments.base));
  DF_ASSIGN_OR_RETURN(const ModelArgument model, ResolveModel(arguments.model));
  options.base_name = base.name;
  options.model_name = model.name;
  std::error_code ignored;  // an unreadable path fails below with its own message
  if (!options.replace && std::filesystem::exists(arguments.out, ignored)) {
    return FailedPrecondition(arguments.out + " exists already; choose another --out or replace it with --force");
  }
  DF_ASSIGN_OR_RETURN(const auto base_checkpoint, Checkpoint::Open(base.directory));
  DF_ASSIGN_OR_RETURN(const auto fine_tune, Checkpoint::Open(model.directory));
  const InterruptGuard interrupt;
  Progress progress("compress");
  options.on_progress = [&](const CompressOptions::Progress& done) {
    progress.Update({done.done_bytes, done.n_bytes, done.done_tensors, done.n_tensors});
    return !interrupt.Interrupted();
  };
  ThreadPool pool(arguments.n_threads > 0 ? arguments.n_threads : UsableCpus());
  return Compress(pool, *base_checkpoint, *fine_tune, arguments.out, options);
}

int Run(const Arguments& arguments) {
  const SteadyClock clock;
  const int64_t start_us = clock.NowUs();
  const Result<CompressReport> report = CompressWithProgress(arguments);
  if (!report.ok()) return Report("compress", FromFiles(report.status()));
  const double seconds = static_cast<double>(clock.NowUs() - start_us) * 1e-6;
  if (arguments.json) {
    PrintJson(*report, arguments, seconds);
  } else {
    PrintSummary(*report, arguments, seconds);
  }
  return 0;
}

void AddVocabularyOptions(const Command& command, const std::string& name, const std::string& planes_name,
                          const std::string& what, VocabularyOptions& options) {
  command
      .Choice(name, kVocabularyCodes, options.code,
              what + ": auto (nothing, changed rows or all: exact), raw, rows, sign [auto]")
      .Value("CODE");
  command.Option(planes_name, options.n_planes, "Sign planes of " + name + " sign [2]").Range(1, kMaxPlanes).Value("N");
}

}  // namespace

void AddCompress(const Command& app) {
  const Command command = app.Sub("compress", "Compress a fine-tune against its base to a delta directory");
  auto arguments = std::make_shared<Arguments>();
  CompressOptions& options = arguments->options;
  command.Option("base,--base", arguments->base, "Base model: directory, or hub id in the local cache")
      .Required()
      .Value("MODEL");
  command.Option("model,--model,--finetune", arguments->model, "Full fine-tune of that base").Required().Value("MODEL");
  command.Option("out,--out,-o", arguments->out, "Delta directory to write; appears whole or not at all")
      .Required()
      .Value("DIR");
  command.Choice("--scale", kScales, options.sign.scale, "Scale of the signs: scalar, row or rank1 [rank1]")
      .Value("KIND");
  command.Option("--planes", options.sign.n_planes, "Sign planes of the matrices, one bit a weight each [1]")
      .Range(1, kMaxPlanes)
      .Value("N");
  AddVocabularyOptions(command, "--embeddings", "--embedding-planes", "Embedding", options.embeddings);
  AddVocabularyOptions(command, "--head", "--head-planes", "Head, where it is not tied", options.head);
  command.Option("--threads", arguments->n_threads, "Threads [all usable]").Range(1, 1024).Value("N");
  command.Switch("--force", options.replace, "Replace an existing --out");
  command.Switch("--json", arguments->json, "Print the report as JSON");
  command.Footer(kExamples);
  command.OnRun([arguments] { return Run(*arguments); });
}

}  // namespace df::cli
