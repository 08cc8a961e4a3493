#include "tools/bench_merge.h"

#include <algorithm>
#include <filesystem>

#include "base/atomic_file.h"
#include "base/clock.h"
#include "base/float16.h"
#include "base/json.h"
#include "base/rng.h"
#include "codec/row_ops.h"
#include "format/model_config.h"
#include "kernels/target.h"
#include "merge/adapter_merge.h"
#include "merge/adapter_pool.h"
#include "merge/adapter_similarity.h"
#include "merge/adapter_writer.h"
#include "merge/merger.h"
#include "model/bind.h"
#include "tools/machine.h"
#include "tools/statistics.h"
#include "tools/synthetic_files.h"
#include "tools/synthetic_shape.h"
#include "tools/temporary_directory.h"

namespace df::tools {
namespace {

namespace fs = std::filesystem;

constexpr double kLeastShare = 0.4;              // of the memory's read speed, by linear methods
constexpr double kMostRandomisedSeconds = 3;     // monosoup of a tensor, at most 256 values kept
constexpr double kMostGramSeconds = 25;          // the same, more
constexpr double kMostSimilaritySeconds = 0.03;  // of two adapters
constexpr double kMostAdditionSeconds = 0.5;     // to a full pool of kSlots
constexpr size_t kSlots = 8, kRank = 32;
constexpr double kFactorScale = 0.01;  // of made adapters

double SecondsSince(int64_t start_us) { return static_cast<double>(SteadyClock().NowUs() - start_us) * 1e-6; }

Status RemoveAll(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  return error ? IoError("cannot remove " + path, error.value()) : Status::Ok();
}

// Until as many bytes are with the file system, of a new file, in pieces as a merge writes them.
Result<double> SecondsToWrite(const std::string& path, uint64_t n_bytes) {
  const std::vector<uint8_t> piece(size_t{512} << 10, 1);
  const int64_t start_us = SteadyClock().NowUs();
  DF_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  for (uint64_t at = 0; at < n_bytes; at += piece.size()) {
    DF_RETURN_IF_ERROR(file.Write(Bytes(piece).first(std::min<uint64_t>(piece.size(), n_bytes - at))));
  }
  return SecondsSince(start_us);  // never committed: it goes with `file`
}

// Uniform in [-0.5, 0.5) times `scale`.
void FillUniform(ThreadPool& pool, uint64_t seed, double scale, Mat<float>& a) {
  pool.ParallelFor(a.rows(), 1, [&](size_t begin, size_t end, size_t) {
    for (size_t i = begin * a.cols(); i < end * a.cols(); ++i) {
      a.Row(0)[i] = static_cast<float>(scale * (RandomUnit(seed, i) - 0.5));
    }
  });
}

// A base as BF16, and a model that differs from it by `rank` terms under some noise, or by noise alone (rank 0).
struct MadeTensor {
  MadeTensor(ThreadPool& pool, const MergeBenchOptions& options, size_t rank)
      : shape{options.rows, options.cols}, base(options.rows * options.cols), model(base.size()) {
    const size_t cols = options.cols;
    Mat<float> weights(options.rows, cols), noise(options.rows, cols);
    FillUniform(pool, 1, 0.1, weights);
    FillUniform(pool, 2, rank == 0 ? 0.02 : 0.002, noise);
    Mat<float> left(options.rows, std::max<size_t>(rank, 1)), right(std::max<size_t>(rank, 1), cols);
    FillUniform(pool, 3, 0.02, left);
    FillUniform(pool, 4, 1, right);
    pool.ParallelFor(options.rows, 1, [&](size_t begin, size_t end, size_t) {
      for (size_t row = begin; row < end; ++row) {
        float* const change = noise.Row(row);
        for (size_t k = 0; k < rank; ++k) {
          for (size_t col = 0; col < cols; ++col) change[col] += left.Row(row)[k] * right.Row(k)[col];
        }
        for (size_t col = 0; col < cols; ++col) {
          base[row * cols + col] = ToBf16(weights.Row(row)[col]);
          model[row * cols + col] = ToBf16(weights.Row(row)[col] + change[col]);
        }
      }
    });
  }
  merge::TensorGroup Group() const {
    return {.name = "made",
            .base = TensorView{DType::kBf16, shape, AsBytes(std::span(base))},
            .models = {{DType::kBf16, shape, AsBytes(std::span(model))}}};
  }
  Shape shape;
  std::vector<Bf16> base, model;
};

class MergeRun {
 public:
  MergeRun(const MergeBenchOptions& options, std::string family, std::string directory, MergeBenchReport& report)
      : options_(options),
        family_(std::move(family)),
        directory_(std::move(directory)),
        report_(report),
        context_(report.n_threads) {}

  Status All() {
    Say("limits");
    report_.read_bytes_per_second = MeasureMachine(context_).read_bytes_per_second;
    DF_RETURN_IF_ERROR(MeasureLinear());
    DF_RETURN_IF_ERROR(MeasureMonosoup(128, kMostRandomisedSeconds));
    DF_RETURN_IF_ERROR(MeasureMonosoup(0, kMostGramSeconds));
    return MeasurePool();
  }

 private:
  void Say(const std::string& what) const {
    if (options_.on_progress) options_.on_progress(what);
  }
  ThreadPool& pool() { return context_.pool; }

  // Three full models of the family to one; in the page cache once the first, uncounted round has read them.
  Status MeasureLinear() {
    Say("a family of shape " + options_.shape);
    DF_RETURN_IF_ERROR(WriteSyntheticFamily(family_, options_.shape, 0));
    const std::string third = family_ + "/fine-tune-2";
    std::error_code error;
    if (!fs::exists(third)) fs::copy(family_ + "/fine-tune", third, fs::copy_options::recursive, error);
    if (error) return IoError("cannot write " + third, error.value());
    merge::Recipe recipe{.method = "linear"};
    for (const char* name : {"/base", "/fine-tune", "/fine-tune-2"}) recipe.models.push_back({.model = family_ + name});
    recipe.parameters["weight"] = {.cases = {{.values = {1}}}};
    DF_RETURN_IF_ERROR(merge::CompleteRecipe(recipe));
    Say("linear of three models");
    std::vector<double> streamed, whole, written;
    uint64_t bytes = 0, out_bytes = 0;
    for (size_t round = 0; round <= options_.n_rounds; ++round) {
      const std::string out = directory_ + "/merged";
      const int64_t start_us = SteadyClock().NowUs();
      DF_ASSIGN_OR_RETURN(const merge::MergeSources sources, merge::OpenSources(recipe));
      DF_ASSIGN_OR_RETURN(const merge::MergeReport report, merge::MergeModels(pool(), recipe, sources, out, {}));
      bytes = report.read_bytes + report.bytes;
      out_bytes = report.bytes;
      if (round > 0) streamed.push_back(report.stream_seconds);
      if (round > 0) whole.push_back(SecondsSince(start_us));
      DF_RETURN_IF_ERROR(RemoveAll(out));
      DF_ASSIGN_OR_RETURN(const double seconds, SecondsToWrite(directory_ + "/written", out_bytes));
      if (round > 0) written.push_back(seconds);
    }
    const double share = static_cast<double>(bytes) / Median(streamed) / report_.read_bytes_per_second;
    report_.lines.push_back({.what = "linear merge of 3 models, streamed",
                             .seconds = Median(streamed),
                             .bytes = bytes,
                             .share = share,
                             .least_share = kLeastShare});
    report_.lines.push_back({.what = "the same with the disk's part",
                             .seconds = Median(whole),
                             .bytes = bytes,
                             .share = static_cast<double>(bytes) / Median(whole) / report_.read_bytes_per_second});
    report_.lines.push_back(
        {.what = "its output alone, written by one thread",
         .seconds = Median(written),
         .bytes = out_bytes,
         .share = static_cast<double>(out_bytes) / Median(written) / report_.read_bytes_per_second});
    return Status::Ok();
  }

  Status MeasureMonosoup(size_t rank, double most_seconds) {
    const std::string what = "monosoup of one " + std::to_string(options_.rows) + " x " +
                             std::to_string(options_.cols) + (rank > 0 ? " tensor, few values kept" : " tensor, many");
    Say(what);
    const MadeTensor made(pool(), options_, rank);
    const merge::Method& method = *merge::FindMethodOrNull("monosoup");
    std::vector<Bf16> out(made.base.size());
    const int64_t start_us = SteadyClock().NowUs();
    DF_ASSIGN_OR_RETURN(const merge::Report report,
                        merge::Merge(pool(), method, made.Group(), merge::DefaultSettings(method, 1),
                                     [&](size_t first, std::span<const float> values) {
                                       row_ops::Narrow(values, DType::kBf16,
                                                       reinterpret_cast<uint8_t*>(out.data() + first));
                                     }));
    report_.lines.push_back(
        {.what = what,
         .seconds = SecondsSince(start_us),
         .most_seconds = most_seconds,
         .way = std::string(merge::WayName(report.way)) + ", " + std::to_string(report.spectra[0].rank) + " kept"});
    return Status::Ok();
  }

  Result<AdapterFactors> MadeAdapter(uint64_t seed) {
    DF_ASSIGN_OR_RETURN(const Json json, SyntheticConfig(options_.shape));
    DF_ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(json));
    AdapterFactors factors{.modules = {}, .dtype = DType::kBf16};
    for (const Slot& slot : ListSlots(config, true)) {
      if (slot.kind != SlotKind::kMatrix) continue;
      FactorPair& pair = factors.modules[slot.name.substr(0, slot.name.rfind('.'))];
      pair.a = Mat<float>(kRank, slot.d_in);
      pair.b = Mat<float>(slot.d_out, kRank);
      FillUniform(pool(), ++seed * 1'000'003, kFactorScale, pair.a);
      FillUniform(pool(), ++seed * 1'000'003, kFactorScale, pair.b);
      pair.squared_norm = SquaredNormOf(pair);
    }
    return factors;
  }

  Status MeasurePool() {
    Say("similarity of two adapters");
    {
      DF_ASSIGN_OR_RETURN(const AdapterFactors first, MadeAdapter(0));
      DF_ASSIGN_OR_RETURN(const AdapterFactors second, MadeAdapter(1 << 20));
      std::vector<double> seconds;
      double sum = 0;  // looked at, so that it is computed
      for (size_t round = 0; round < 5 * options_.n_rounds; ++round) {
        const int64_t start_us = SteadyClock().NowUs();
        sum += Similarity(pool(), first, second);
        seconds.push_back(SecondsSince(start_us));
      }
      DF_CHECK(sum <= static_cast<double>(seconds.size()));
      report_.lines.push_back({.what = "similarity of two adapters of rank 32",
                               .seconds = Median(seconds),
                               .most_seconds = kMostSimilaritySeconds});
    }
    Say("additions to a pool of " + std::to_string(kSlots));
    // All different: what is in a slot already is not merged again.
    const uint64_t n_adapters = kSlots + options_.n_rounds;
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < n_adapters; ++i) {
      DF_ASSIGN_OR_RETURN(const AdapterFactors factors, MadeAdapter(i << 20));
      bytes = TensorBytes(factors);
      std::error_code error;
      fs::create_directories(AdapterPath(i), error);
      if (error) return IoError("cannot make " + AdapterPath(i), error.value());
      DF_RETURN_IF_ERROR(WriteAdapter(factors, "made", AdapterPath(i)));
    }
    DF_ASSIGN_OR_RETURN(const auto adapters,
                        AdapterPool::Create(directory_ + "/pool", {.budget_bytes = kSlots * bytes}));
    std::vector<double> seconds;
    for (uint64_t i = 0; i < n_adapters; ++i) {
      const int64_t start_us = SteadyClock().NowUs();
      DF_RETURN_IF_ERROR(adapters->Add(pool(), std::to_string(i), AdapterPath(i)).status());
      if (i >= kSlots) seconds.push_back(SecondsSince(start_us));
    }
    report_.lines.push_back({.what = "an adapter of rank 32 into a full pool of 8",
                             .seconds = Median(seconds),
                             .most_seconds = kMostAdditionSeconds});
    return Status::Ok();
  }

  std::string AdapterPath(uint64_t i) const { return directory_ + "/adapter-" + std::to_string(i); }

  const MergeBenchOptions& options_;
  const std::string family_, directory_;
  MergeBenchReport& report_;
  KernelContext context_;
};

}  // namespace

Result<MergeBenchReport> RunMergeBench(const MergeBenchOptions& options) {
  MergeBenchReport report = {.shape = options.shape,
                             .n_threads = options.n_threads == 0 ? UsableCpus() : options.n_threads};
  if (kernels::IsScalarTarget()) {
    return FailedPrecondition("the scalar target is the oracle and has no limits to be measured against");
  }
  DF_RETURN_IF_ERROR(SyntheticConfig(options.shape).status());
  DF_ASSIGN_OR_RETURN(TemporaryDirectory directory, TemporaryDirectory::Make(options.directory));
  const std::string family = options.family.empty() ? directory.path() + "/family" : options.family;
  std::error_code error;
  std::filesystem::create_directories(family, error);
  if (error) return IoError("cannot make " + family, error.value());
  DF_RETURN_IF_ERROR(MergeRun(options, family, directory.path(), report).All());
  return report;
}

Json ToJson(const MergeBenchReport& report) {
  Json json = {{"shape", report.shape},
               {"threads", report.n_threads},
               {"limits", {{"read_bytes_per_second", report.read_bytes_per_second}}},
               {"results", Json::array()}};
  for (const MergeLine& line : report.lines) {
    Json& result = json["results"].emplace_back(Json{{"name", line.what}, {"seconds", line.seconds}});
    if (line.bytes > 0) {
      result["bytes"] = line.bytes;
      result["bytes_per_second"] = static_cast<double>(line.bytes) / line.seconds;
      result["read_share"] = line.share;
    }
    if (!line.way.empty()) result["way"] = line.way;
    if (!line.has_target()) continue;
    result["value"] = line.least_share ? line.share : line.seconds;
    result["target"] = line.least_share ? Json{{"of", "memory read"}, {"at_least", *line.least_share}}
                                        : Json{{"of", "seconds"}, {"at_most", *line.most_seconds}};
    result["pass"] = line.passes();
  }
  return json;
}

}  // namespace df::tools
