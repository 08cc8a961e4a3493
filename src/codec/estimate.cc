#include "codec/estimate.h"

#include <time.h>

#include <algorithm>
#include <map>

#include "base/clock.h"
#include "base/rng.h"
#include "codec/calibrate.h"
#include "codec/exact.h"
#include "codec/low_rank.h"
#include "codec/output_target.h"
#include "codec/survey.h"
#include "codec/weight_task.h"
#include "model/layer_names.h"

namespace df {
namespace {

constexpr size_t kSampleBytes = size_t{32} << 20;
// Multiplications of a product that fitting is measured on: some tenths of a second in all. A 64th of its tokens.
constexpr double kFittingProducts = 1e9;
constexpr size_t kMadeUpTokens = 128;
// A changed matrix mostly shows in its first rows.
constexpr size_t kLookRows = 64;

constexpr const char* kOtherCodes[] = {"scalar",           "row",  "rank1", "planes2", "planes4", "lowrank:16",
                                       "rank1+lowrank:16", "int8", "raw"};

TensorView RowsOf(const TensorView& tensor, size_t begin, size_t end) {
  if (tensor.shape.rank() != 2) return tensor;
  const size_t row_bytes = MatrixCols(tensor) * DTypeBytes(tensor.dtype);
  return {tensor.dtype, Shape{end - begin, MatrixCols(tensor)},
          tensor.bytes.subspan(begin * row_bytes, (end - begin) * row_bytes)};
}

// A weight, as far as its bytes depend on it.
struct Facts {
  const WeightTask* task = nullptr;
  size_t d_out = 0, d_in = 0;
  size_t n_new = 0;         // rows that the base lacks
  size_t n_changed = 0;     // rows, with those
  bool is_counted = false;  // else n_changed is all rows or none
  bool has_change = false;  // in rows that both have
  bool has_inputs = false;  // on a text: what its codes can be fitted to
};

Result<Facts> FactsOfMatrix(ThreadPool& pool, const WeightTask& task, Facts facts) {
  const WeightPair pair = task.pair();
  for (size_t first = 0; first < facts.d_out; first += kLookRows) {
    const size_t end = std::min(first + kLookRows, facts.d_out);
    const WeightPair part{pair.name, RowsOf(pair.base, first, end), RowsOf(pair.fine_tune, first, end)};
    DF_ASSIGN_OR_RETURN(const std::vector<int32_t> changed, ChangedRows(pool, part));
    if (changed.empty()) continue;
    facts.has_change = true;
    facts.n_changed = facts.d_out;
    return facts;
  }
  facts.is_counted = true;
  return facts;
}

Result<Facts> FactsOf(ThreadPool& pool, const WeightTask& task) {
  const WeightPair pair = task.pair();
  Facts facts{.task = &task, .d_out = MatrixRows(pair.fine_tune), .d_in = MatrixCols(pair.fine_tune)};
  if (task.slot.kind == SlotKind::kMatrix) return FactsOfMatrix(pool, task, facts);
  const size_t n_base = MatrixRows(pair.base);
  facts.n_new = facts.d_out - std::min(facts.d_out, n_base);
  DF_ASSIGN_OR_RETURN(const std::vector<int32_t> changed, ChangedRows(pool, pair));
  facts.n_changed = changed.size();
  facts.is_counted = true;
  facts.has_change = changed.size() > facts.n_new;
  return facts;
}

uint64_t FullBytes(const Facts& facts) { return facts.task->fine_tune->view.bytes.size(); }

uint64_t RowsBytes(const Facts& facts, size_t n_rows) {
  return uint64_t{n_rows} * (facts.d_in * DTypeBytes(facts.task->fine_tune->view.dtype) + sizeof(int32_t));
}

uint64_t SignBytes(const Facts& facts, const SignOptions& sign, size_t scale_bytes) {
  uint64_t scale = 0;
  switch (sign.scale) {
    case ScaleKind::kScalar: return sign.n_planes * (uint64_t{facts.d_out} * SignRowBytes(facts.d_in) + sizeof(float));
    case ScaleKind::kRow: scale = facts.d_out; break;
    case ScaleKind::kColumn: scale = facts.d_in; break;
    case ScaleKind::kRank1: scale = uint64_t{facts.d_out} + facts.d_in; break;
  }
  return sign.n_planes * (uint64_t{facts.d_out} * SignRowBytes(facts.d_in) + scale * scale_bytes);
}

size_t RankOf(const Facts& facts, size_t rank) { return std::min({rank, facts.d_out, facts.d_in, kMaxCodedRank}); }

BytesEstimate Exactly(uint64_t bytes) { return {.likely = bytes, .at_most = bytes}; }

// `is_fitted`: to a text; scales of rows and columns take two bytes then.
BytesEstimate CodedBytes(const Facts& facts, const Code& code, bool is_fitted) {
  const uint64_t full = FullBytes(facts), rows = RowsBytes(facts, facts.n_changed);
  switch (code.kind) {
    case CodeKind::kSign: {
      const uint64_t new_rows = RowsBytes(facts, facts.n_new);
      if (!facts.has_change) return Exactly(new_rows);
      const uint64_t beside = LowRankBytes(facts.d_out, facts.d_in, RankOf(facts, code.rank)) + new_rows;
      const uint64_t wide = SignBytes(facts, code.sign, sizeof(float)) + beside;
      return {.likely = is_fitted ? SignBytes(facts, code.sign, sizeof(uint16_t)) + beside : wide, .at_most = wide};
    }
    case CodeKind::kLowRank: {
      if (!facts.has_change) return Exactly(0);
      if (code.rank == 0) return {.likely = full, .at_most = full, .is_bound = true};
      const uint64_t narrow = LowRankBytes(facts.d_out, facts.d_in, RankOf(facts, code.rank));
      return {.likely = narrow, .at_most = 2 * narrow};  // factors of F32
    }
    case CodeKind::kByteRows: {
      const uint64_t bytes = uint64_t{facts.n_changed} * (facts.d_in + sizeof(int32_t) + sizeof(float));
      return {.likely = bytes, .at_most = bytes, .is_bound = !facts.is_counted};
    }
    case CodeKind::kRows: return {.likely = rows, .at_most = rows, .is_bound = !facts.is_counted};
    case CodeKind::kRaw: return Exactly(facts.n_changed > 0 ? full : 0);
    case CodeKind::kExact: break;
  }
  return {.likely = std::min(rows, full), .at_most = std::min(rows, full), .is_bound = !facts.is_counted};
}

// With what a reader would take wrongly if it were not there.
BytesEstimate WeightBytes(const Facts& facts, const Code& code, bool is_fitted) {
  const BytesEstimate bytes = CodedBytes(facts, code, is_fitted);
  return bytes.at_most == 0 && facts.task->must_be_stored ? Exactly(FullBytes(facts)) : bytes;
}

// The text runs through the models only for codes of matrices that take inputs.
bool HasStream(const CompressOptions& options, const std::optional<FittingText>& text) {
  return text && (!options.matrices || TakesInputs(*options.matrices));
}

BytesEstimate ModelBytes(const std::vector<Facts>& weights, const CompressOptions& options,
                         const CompressEstimate& totals, bool has_stream) {
  BytesEstimate sum;
  bool is_chosen = false;
  uint64_t smallest = 0;  // no less than what the smallest codes take, which a budget may grow to
  for (const Facts& facts : weights) {
    const std::optional<Code>& code = GivenCode(facts.task->slot.kind, options);
    is_chosen = is_chosen || !code;
    const Code least = code.value_or(Code{.sign = {.scale = ScaleKind::kScalar}});
    const bool is_fitted = has_stream && facts.has_inputs;
    smallest += WeightBytes(facts, least, is_fitted).at_most;
    // Whatever is chosen, the exact code was there to be.
    BytesEstimate bytes = WeightBytes(facts, code.value_or(Code{.kind = CodeKind::kExact}), is_fitted);
    bytes.is_bound = bytes.is_bound || (!code && bytes.at_most > 0);
    sum.Add(bytes);
  }
  if (!is_chosen || options.max_error) return sum;
  const uint64_t budget = options.budget.Bytes(totals.n_elements, totals.full_bytes);
  sum.at_most = std::min(sum.at_most, options.budget_may_grow ? std::max(budget, smallest) : budget);
  sum.likely = sum.at_most;
  return sum;
}

// What fitting a code takes, in products of the weight by [d_in, d_in] (calibrate.h): the target, its drift and the
// error of the outputs are three, a scale one, a rank-1 plane two a round.
constexpr double kPlaneProducts = 2.0 * kCalibrationRounds + 1;
double FittingProducts(const std::optional<Code>& code) {
  // Of a survey: scalar, row, one plane beside a low rank, one to three planes in two sweeps, the errors of them all;
  // then the choice, which is one plane or two.
  constexpr double kSurveyed = 2 * 3 + kPlaneProducts * (1 + 1 + 2 * (2 + 3)) + 10;
  if (!code) return kSurveyed + 3 * kPlaneProducts;
  constexpr double kLowRankProducts = 4;  // the target, its whitening, some for the decomposition
  const double low_rank = HasLowRank(*code) ? kLowRankProducts : 0;
  if (code->kind != CodeKind::kSign) return 3 + low_rank;
  if (code->sign.n_planes > 1) return 3 + 2 * static_cast<double>(code->sign.n_planes) * kPlaneProducts + low_rank;
  return 3 + (code->sign.scale == ScaleKind::kRank1 ? kPlaneProducts : 1) + low_rank;
}

// Seconds an element of a sample, by code; nullopt is `auto`.
class Stopwatch {
 public:
  Stopwatch(ThreadPool& pool, const std::vector<Facts>& weights) : pool_(pool) {
    for (const Facts& facts : weights) {
      const bool is_matrix = facts.task->slot.kind == SlotKind::kMatrix && facts.has_change;
      if (is_matrix && (largest_ == nullptr || FullBytes(facts) > FullBytes(*largest_))) largest_ = &facts;
    }
    if (largest_ == nullptr) return;
    const WeightPair pair = largest_->task->pair();
    const size_t n_rows = std::clamp<size_t>(kSampleBytes / std::max<size_t>(1, FullBytes(*largest_) / largest_->d_out),
                                             1, largest_->d_out);
    // From the middle: the first rows were looked at.
    const size_t first = (largest_->d_out - n_rows) / 2;
    sample_ = {pair.name, RowsOf(pair.base, first, first + n_rows), RowsOf(pair.fine_tune, first, first + n_rows)};
  }

  uint64_t sample_bytes() const { return sample_.fine_tune.bytes.size(); }

  // The first reading, from wherever the files lie, and one after; what is over is the medium's.
  Status MeasureReading() {
    if (largest_ == nullptr) return Status::Ok();
    const auto read_us = [&](double& us) {
      const SteadyClock clock;
      const int64_t start_us = clock.NowUs();
      const Status read = ChangedRows(pool_, sample_).status();
      us = static_cast<double>(clock.NowUs() - start_us);
      return read;
    };
    double first_us = 0, again_us = 0;
    DF_RETURN_IF_ERROR(read_us(first_us));
    DF_RETURN_IF_ERROR(read_us(again_us));
    reading_ = std::max(first_us - again_us, 0.0) * 1e-6 / static_cast<double>(sample_.fine_tune.elements());
    return Status::Ok();
  }

  // Of one multiplication in fitting, by that of a part of the sample to made-up inputs; 0 where nothing changed.
  Result<double> FittingSeconds() {
    if (largest_ == nullptr) return 0.0;
    if (fitting_ > 0) return fitting_;
    const size_t d_in = largest_->d_in, n_all = MatrixRows(sample_.fine_tune);
    const auto n_affordable =
        static_cast<size_t>(kFittingProducts / (static_cast<double>(d_in) * static_cast<double>(d_in)));
    const size_t n_rows = std::min(std::max(n_affordable, kBlockRows * pool_.n_threads()), n_all);
    const WeightPair part{sample_.name, RowsOf(sample_.base, 0, n_rows), RowsOf(sample_.fine_tune, 0, n_rows)};
    Mat<float> x(kMadeUpTokens, d_in);
    for (size_t i = 0; i < kMadeUpTokens * d_in; ++i) x.Row(0)[i] = static_cast<float>(RandomUnit(1, i)) - 0.5F;
    const WeightInputs inputs = GatherInputs(pool_, x.view(), x.view(), UINT64_MAX);
    double seconds = 0;
    DF_RETURN_IF_ERROR(Time(seconds, [&] { return Encode(pool_, part, Code{}, &inputs).status(); }));
    const double n_products = static_cast<double>(part.fine_tune.elements()) * static_cast<double>(d_in);
    seconds *= static_cast<double>(sample_.fine_tune.elements());
    return fitting_ = std::max(seconds, 1e-9) / (n_products * kPlaneProducts);
  }

  Result<double> SecondsOf(const std::optional<Code>& code) {
    if (largest_ == nullptr) return 0.0;
    const std::string name = code ? CodeText(*code) : "auto";
    if (const auto known = known_.find(name); known != known_.end()) return known->second;
    double seconds = 0;
    if (code) {
      DF_RETURN_IF_ERROR(Time(seconds, [&] { return Encode(pool_, sample_, *code).status(); }));
      return known_[name] = seconds + reading_;
    }
    DF_RETURN_IF_ERROR(Time(seconds, [&] { return SurveyWeight(pool_, sample_, {}).status(); }));
    DF_ASSIGN_OR_RETURN(const double encoding, SecondsOf(Code{}));
    return known_[name] = seconds + reading_ + encoding;
  }

 private:
  // By the element, in CPU time: other processes make the wall time of so short a sample several times as long. The
  // caller works or spins until the last part of a call is done; where it slept the whole process's time is the larger.
  template <typename Body>
  Status Time(double& seconds, const Body& body) {
    const double start_s = CpuSeconds(CLOCK_THREAD_CPUTIME_ID), all_start_s = CpuSeconds(CLOCK_PROCESS_CPUTIME_ID);
    DF_RETURN_IF_ERROR(body());
    const double of_caller = CpuSeconds(CLOCK_THREAD_CPUTIME_ID) - start_s;
    const double of_process = CpuSeconds(CLOCK_PROCESS_CPUTIME_ID) - all_start_s;
    seconds = std::max(of_caller, of_process / static_cast<double>(pool_.n_threads())) /
              static_cast<double>(sample_.fine_tune.elements());
    return Status::Ok();
  }
  static double CpuSeconds(clockid_t clock) {
    timespec time = {};
    clock_gettime(clock, &time);
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
  }

  ThreadPool& pool_;
  const Facts* largest_ = nullptr;
  WeightPair sample_;
  double reading_ = 0;
  double fitting_ = 0;
  std::map<std::string, double> known_;
};

// Multiplications that a text takes on its way: written (once through the fine-tune), shown to an embedding that is the
// head too and to a survey of the matrices (once more each), then through both models; and the moments of its inputs.
double StreamProducts(const std::vector<Facts>& weights, const ModelConfig& config, const CompressOptions& options,
                      const FittingText& text) {
  const bool is_tied = weights.back().task->slot.kind != SlotKind::kHead;
  const double n_passes = 2.0 + (text.is_own ? 1 : 0) + (is_tied ? 1 : 0) + (options.matrices ? 0 : 1);
  double elements = 0, moments = 0;
  for (const Facts& facts : weights) {
    const bool is_matrix = facts.task->slot.kind == SlotKind::kMatrix;
    if (is_matrix) elements += static_cast<double>(facts.d_out) * static_cast<double>(facts.d_in);
  }
  // Second moments, and with them the drift in the pass of the coded model, which is two products.
  const double n_moments = options.matrices ? 3 : 4;
  for (const LinearSlot slot : {LinearSlot::kQ, LinearSlot::kO, LinearSlot::kGate, LinearSlot::kDown}) {
    const auto d_in = static_cast<double>(DimsOf(config, slot).d_in);
    moments += n_moments * static_cast<double>(config.n_layers) * d_in * d_in;
  }
  return static_cast<double>(text.n_tokens) * (n_passes * elements + moments);
}

Result<double> FittingSeconds(const std::vector<Facts>& weights, const ModelConfig& config,
                              const CompressOptions& options, const FittingText& text, Stopwatch& stopwatch) {
  double products = StreamProducts(weights, config, options, text);
  for (const Facts& facts : weights) {
    const std::optional<Code>& code = GivenCode(facts.task->slot.kind, options);
    if (!facts.has_inputs || !facts.has_change || (code && !TakesInputs(*code))) continue;
    const auto d_in = static_cast<double>(facts.d_in);
    products += FittingProducts(code) * static_cast<double>(facts.d_out) * d_in * d_in;
  }
  DF_ASSIGN_OR_RETURN(const double seconds, stopwatch.FittingSeconds());
  return seconds * products;
}

// What is estimated: the weights of a model, and a text to fit to.
struct Task {
  const std::vector<Facts>& weights;
  const ModelConfig& config;
  const std::optional<FittingText>& text;
};

Result<CodeEstimate> EstimateCode(const Task& task, const CompressOptions& options, const CompressEstimate& totals,
                                  Stopwatch& stopwatch) {
  const bool has_stream = HasStream(options, task.text);
  CodeEstimate estimate{.code = options.matrices ? CodeText(*options.matrices) : "auto",
                        .bytes = ModelBytes(task.weights, options, totals, has_stream)};
  for (const Facts& facts : task.weights) {
    DF_ASSIGN_OR_RETURN(const double seconds, stopwatch.SecondsOf(GivenCode(facts.task->slot.kind, options)));
    estimate.seconds += seconds * static_cast<double>(facts.task->fine_tune->view.elements());
  }
  if (!has_stream) return estimate;
  DF_ASSIGN_OR_RETURN(const double fitting, FittingSeconds(task.weights, task.config, options, *task.text, stopwatch));
  estimate.seconds += fitting;
  return estimate;
}

// Whether a text says what `task`'s weight is fed with (compressor.cc); `is_tied`: the embedding is the head too.
bool HasInputs(const WeightTask& task, bool is_tied) {
  if (task.slot.kind == SlotKind::kMatrix) return true;
  const bool is_fed = task.slot.kind == SlotKind::kHead || (task.slot.kind == SlotKind::kEmbedding && is_tied);
  return is_fed && MatrixRows(task.base->view) == MatrixRows(task.fine_tune->view);
}

}  // namespace

void BytesEstimate::Add(const BytesEstimate& other) {
  likely += other.likely;
  at_most += other.at_most;
  is_bound = is_bound || other.is_bound;
}

Result<CompressEstimate> EstimateCompress(ThreadPool& pool, const Checkpoint& base, const Checkpoint& fine_tune,
                                          const CompressOptions& options, const std::optional<FittingText>& text) {
  DF_RETURN_IF_ERROR(CheckVariantConfig(base.config(), fine_tune.config()));
  Result<BoundCheckpoint> bound_base = Bind(base);
  if (!bound_base.ok()) return bound_base.status().Annotate("base");
  DF_ASSIGN_OR_RETURN(const std::vector<WeightTask> tasks, ListTasks(base, *bound_base, fine_tune));
  CompressEstimate estimate;
  estimate.n_weights = tasks.size();
  std::vector<Facts> weights;
  for (const WeightTask& task : tasks) {
    if (const auto& code = GivenCode(task.slot.kind, options)) DF_RETURN_IF_ERROR(CheckCode(task.pair(), *code));
    DF_ASSIGN_OR_RETURN(weights.emplace_back(), FactsOf(pool, task));
    weights.back().has_inputs = HasInputs(task, tasks.back().slot.kind != SlotKind::kHead);
    task.base->file->DropPages(task.base->view.bytes);
    task.fine_tune->file->DropPages(task.fine_tune->view.bytes);
    estimate.n_unchanged += weights.back().n_changed == 0 ? 1 : 0;
    estimate.full_bytes += FullBytes(weights.back());
    estimate.n_elements += task.fine_tune->view.elements();
  }
  const Task task{weights, fine_tune.config(), text};
  Stopwatch stopwatch(pool, weights);
  estimate.sample_bytes = stopwatch.sample_bytes();
  DF_RETURN_IF_ERROR(stopwatch.MeasureReading());
  DF_ASSIGN_OR_RETURN(estimate.asked, EstimateCode(task, options, estimate, stopwatch));
  for (const char* const name : kOtherCodes) {
    CompressOptions other = options;
    DF_ASSIGN_OR_RETURN(other.matrices, ParseCode(name));
    if (name == estimate.asked.code) continue;
    DF_ASSIGN_OR_RETURN(estimate.others.emplace_back(), EstimateCode(task, other, estimate, stopwatch));
  }
  DF_RETURN_IF_ERROR(base.CheckIntact());
  DF_RETURN_IF_ERROR(fine_tune.CheckIntact());
  return estimate;
}

}  // namespace df
