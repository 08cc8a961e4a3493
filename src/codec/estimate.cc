#include "codec/estimate.h"

#include <algorithm>
#include <map>

#include "base/clock.h"
#include "codec/exact.h"
#include "codec/low_rank.h"
#include "codec/survey.h"
#include "codec/weight_task.h"

namespace df {
namespace {

constexpr size_t kSampleBytes = size_t{32} << 20;
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
  bool is_fitted = false;   // to a calibration text: scales of rows and columns take two bytes then
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

BytesEstimate CodedBytes(const Facts& facts, const Code& code) {
  const uint64_t full = FullBytes(facts), rows = RowsBytes(facts, facts.n_changed);
  switch (code.kind) {
    case CodeKind::kSign: {
      const uint64_t new_rows = RowsBytes(facts, facts.n_new);
      if (!facts.has_change) return Exactly(new_rows);
      const uint64_t beside = LowRankBytes(facts.d_out, facts.d_in, RankOf(facts, code.rank)) + new_rows;
      const uint64_t wide = SignBytes(facts, code.sign, sizeof(float)) + beside;
      return {.likely = facts.is_fitted ? SignBytes(facts, code.sign, sizeof(uint16_t)) + beside : wide,
              .at_most = wide};
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
BytesEstimate WeightBytes(const Facts& facts, const Code& code) {
  const BytesEstimate bytes = CodedBytes(facts, code);
  return bytes.at_most == 0 && facts.task->must_be_stored ? Exactly(FullBytes(facts)) : bytes;
}

BytesEstimate ModelBytes(const std::vector<Facts>& weights, const CompressOptions& options,
                         const CompressEstimate& totals) {
  BytesEstimate sum;
  bool is_chosen = false;
  uint64_t smallest = 0;  // no less than what the smallest codes take, which a budget may grow to
  for (const Facts& facts : weights) {
    const std::optional<Code>& code = GivenCode(facts.task->slot.kind, options);
    is_chosen = is_chosen || !code;
    const Code least = code.value_or(Code{.sign = {.scale = ScaleKind::kScalar}});
    smallest += WeightBytes(facts, least).at_most;
    // Whatever is chosen, the exact code was there to be.
    BytesEstimate bytes = WeightBytes(facts, code.value_or(Code{.kind = CodeKind::kExact}));
    bytes.is_bound = bytes.is_bound || (!code && bytes.at_most > 0);
    sum.Add(bytes);
  }
  if (!is_chosen || options.max_error) return sum;
  const uint64_t budget = options.budget.Bytes(totals.n_elements, totals.full_bytes);
  sum.at_most = std::min(sum.at_most, options.budget_may_grow ? std::max(budget, smallest) : budget);
  sum.likely = sum.at_most;
  return sum;
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
    double first = 0, again = 0;
    DF_RETURN_IF_ERROR(Time(first, [&] { return ChangedRows(pool_, sample_).status(); }));
    DF_RETURN_IF_ERROR(Time(again, [&] { return ChangedRows(pool_, sample_).status(); }));
    reading_ = std::max(first - again, 0.0);
    return Status::Ok();
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
  // By the element.
  template <typename Body>
  Status Time(double& seconds, const Body& body) {
    const SteadyClock clock;
    const int64_t start_us = clock.NowUs();
    DF_RETURN_IF_ERROR(body());
    seconds = static_cast<double>(clock.NowUs() - start_us) * 1e-6 / static_cast<double>(sample_.fine_tune.elements());
    return Status::Ok();
  }

  ThreadPool& pool_;
  const Facts* largest_ = nullptr;
  WeightPair sample_;
  double reading_ = 0;
  std::map<std::string, double> known_;
};

Result<CodeEstimate> EstimateCode(const std::vector<Facts>& weights, const CompressOptions& options,
                                  const CompressEstimate& totals, Stopwatch& stopwatch) {
  CodeEstimate estimate{.code = options.matrices ? CodeText(*options.matrices) : "auto",
                        .bytes = ModelBytes(weights, options, totals)};
  for (const Facts& facts : weights) {
    DF_ASSIGN_OR_RETURN(const double seconds, stopwatch.SecondsOf(GivenCode(facts.task->slot.kind, options)));
    estimate.seconds += seconds * static_cast<double>(facts.task->fine_tune->view.elements());
  }
  return estimate;
}

}  // namespace

void BytesEstimate::Add(const BytesEstimate& other) {
  likely += other.likely;
  at_most += other.at_most;
  is_bound = is_bound || other.is_bound;
}

Result<CompressEstimate> EstimateCompress(ThreadPool& pool, const Checkpoint& base, const Checkpoint& fine_tune,
                                          const CompressOptions& options, bool is_fitted) {
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
    weights.back().is_fitted = is_fitted;
    task.base->file->DropPages(task.base->view.bytes);
    task.fine_tune->file->DropPages(task.fine_tune->view.bytes);
    estimate.n_unchanged += weights.back().n_changed == 0 ? 1 : 0;
    estimate.full_bytes += FullBytes(weights.back());
    estimate.n_elements += task.fine_tune->view.elements();
  }
  Stopwatch stopwatch(pool, weights);
  estimate.sample_bytes = stopwatch.sample_bytes();
  DF_RETURN_IF_ERROR(stopwatch.MeasureReading());
  DF_ASSIGN_OR_RETURN(estimate.asked, EstimateCode(weights, options, estimate, stopwatch));
  for (const char* const name : kOtherCodes) {
    CompressOptions other = options;
    DF_ASSIGN_OR_RETURN(other.matrices, ParseCode(name));
    if (name == estimate.asked.code) continue;
    DF_ASSIGN_OR_RETURN(estimate.others.emplace_back(), EstimateCode(weights, other, estimate, stopwatch));
  }
  DF_RETURN_IF_ERROR(base.CheckIntact());
  DF_RETURN_IF_ERROR(fine_tune.CheckIntact());
  return estimate;
}

}  // namespace df
