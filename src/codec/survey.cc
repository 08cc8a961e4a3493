#include "codec/survey.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "codec/calibrate.h"
#include "codec/exact.h"
#include "codec/low_rank.h"
#include "codec/output_target.h"
#include "codec/residual.h"
#include "codec/row_ops.h"
#include "codec/whitened.h"
#include "linalg/randomized_svd.h"

namespace df {
namespace {

constexpr size_t kSurveyPlanes = 4;
constexpr size_t kSurveyFittedPlanes = 3;  // fitting several planes takes as long as all other codes together
// A matrix's changed rows are offered in bytes up to this share of them: kernels look each up beside the product.
constexpr double kFewRows = 0.125;

// |D|^2 over all rows of the fine-tune; not finite where a weight is not.
double MeasureDifference(ThreadPool& pool, const WeightPair& pair) {
  const size_t rows = MatrixRows(pair.fine_tune), cols = MatrixCols(pair.fine_tune);
  LinearDelta nothing;
  nothing.d_out = rows;
  nothing.d_in = cols;
  const Residual difference(pair, nothing);
  Buffer<double> squares(rows);
  Mat<float> row_of_thread(pool.n_threads(), cols);
  pool.ParallelFor(rows, RowGrain(cols), [&](size_t begin, size_t end, size_t thread) {
    const std::span<float> d = row_of_thread.view().RowSpan(thread);
    for (size_t row = begin; row < end; ++row) {
      difference.ReadDifference(row, d);
      squares[row] = row_ops::MagnitudesOf(d).Squares();
    }
  });
  double sum = 0;
  for (const double square : squares.span()) sum += square;
  return sum;
}

class Survey {
 public:
  // `inputs` null or with C.
  Survey(ThreadPool& pool, const WeightPair& pair, const WeightInputs* inputs)
      : pool_(pool),
        pair_(pair),
        inputs_(inputs),
        nothing_(UnchangedWeight(MatrixRows(pair.fine_tune), MatrixCols(pair.fine_tune)).delta),
        difference_(MeasureDifference(pool, pair)) {
    // What the outputs lose is measured where there are inputs, else what the weight does.
    const bool has_outputs = inputs && std::isfinite(difference_) && difference_ > 0;
    energy_ = has_outputs ? OutputEnergy(pool, pair, nothing_, *inputs) : difference_;
  }

  // Turns losses, which are shares of what the fine-tune did, into shares of the whole.
  void WeighBySignal() {
    const double signal = SignalEnergy(pool_, pair_.fine_tune, inputs_);
    for (Candidate& candidate : candidates_) candidate.loss *= signal > 0 ? energy_ / signal : 1.0;
  }

  bool IsUnchanged() const { return difference_ == 0; }
  Status CheckFinite() const { return std::isfinite(difference_) ? Status::Ok() : FindNonFinite(pair_); }

  Status AddEncoded(const Code& code) {
    DF_ASSIGN_OR_RETURN(const EncodedWeight encoded, Encode(pool_, pair_, code, inputs_));
    AddMeasured(code, encoded.delta, encoded.quality.relative_frobenius);
    return Status::Ok();
  }

  // Of a matrix, bytes only where few rows changed.
  Status AddRows(SurveyKind kind) {
    const Code exact = {.kind = CodeKind::kExact};
    DF_ASSIGN_OR_RETURN(const EncodedWeight encoded, Encode(pool_, pair_, exact));
    AddMeasured(exact, encoded.delta, encoded.quality.relative_frobenius);
    const std::optional<ReplacedRows>& rows = encoded.delta.rows;
    const size_t n_changed = rows ? rows->index.size() : nothing_.d_out;
    const bool are_few = static_cast<double>(n_changed) <= kFewRows * static_cast<double>(nothing_.d_out);
    return kind == SurveyKind::kVocabulary || are_few ? AddEncoded({.kind = CodeKind::kByteRows}) : Status::Ok();
  }

  // Rank-1 planes one after another: the signs of p planes are the first p of more.
  Status AddPlanes() {
    const size_t n_planes = inputs_ ? kSurveyFittedPlanes : kSurveyPlanes;
    DF_ASSIGN_OR_RETURN(const EncodedWeight planes, EncodeSign(pool_, pair_, {.n_planes = n_planes}));
    for (size_t p = 1; p <= planes.delta.planes.size(); ++p) {
      EncodedWeight partial;
      partial.delta = nothing_;
      partial.delta.planes.assign(planes.delta.planes.begin(), planes.delta.planes.begin() + static_cast<ptrdiff_t>(p));
      DF_RETURN_IF_ERROR(AddNewRows(pair_, partial));  // of a grown vocabulary, as Encode does
      if (inputs_) CalibratePlanes(pool_, pair_, *inputs_, partial);
      const Quality quality = inputs_ ? partial.quality : MeasureQuality(pool_, pair_, partial.delta);
      AddMeasured({.sign = {.n_planes = p}}, partial.delta, quality.relative_frobenius);
    }
    return Status::Ok();
  }

  // The rank of a fused adapter, where this is one; without inputs all others besides.
  Status AddLowRanks() {
    DF_ASSIGN_OR_RETURN(linalg::TruncatedSvd found, LeadingPart(nothing_));
    const RoundingNoise noise = MeasureRoundingNoise(pool_, pair_.fine_tune);
    for (size_t rank = 1; !inputs_ && rank <= found.svd.s.size(); rank *= 2) {
      const LowRankCost cost = CostOfRank(found, rank, nothing_.d_out, nothing_.d_in, &noise);
      AddLoss({.kind = CodeKind::kLowRank, .rank = rank}, cost.bytes, cost.error / difference_);
    }
    DF_ASSIGN_OR_RETURN(const EncodedWeight fused, EncodeFused(pool_, pair_, noise, std::move(found)));
    if (!fused.delta.IsBase()) AddFused(fused);
    return Status::Ok();
  }

  // Beside one plane.
  Status AddLowRanksOfResidual() {
    DF_ASSIGN_OR_RETURN(const EncodedWeight signs, Encode(pool_, pair_, {}, inputs_));
    return AddRanksBeside({}, signs.delta, inputs_ != nullptr);
  }

  std::vector<Candidate> Take() { return std::move(candidates_); }

 private:
  Result<linalg::TruncatedSvd> LeadingPart(const LinearDelta& delta) {
    const Residual residual(pair_, delta);
    return linalg::RandomizedSvd(pool_, residual.Source(), SvdOptions());
  }

  Result<linalg::TruncatedSvd> LeadingOutputs(const LinearDelta& delta) {
    DF_ASSIGN_OR_RETURN(const WhitenedTarget whitened, Whiten(pool_, pair_, delta, *inputs_));
    return linalg::RandomizedSvd(pool_, linalg::RowsOf(whitened.target.view()), SvdOptions());
  }

  linalg::RandomizedSvdOptions SvdOptions() const {
    return {.rank = std::min({kSearchRank, nothing_.d_out, nothing_.d_in})};
  }

  // `code` with every rank that is a power of two, beside `delta`.
  Status AddRanksBeside(Code code, const LinearDelta& delta, bool by_outputs) {
    DF_ASSIGN_OR_RETURN(const linalg::TruncatedSvd found, by_outputs ? LeadingOutputs(delta) : LeadingPart(delta));
    for (code.rank = 1; code.rank <= found.svd.s.size(); code.rank *= 2) {
      const LowRankCost cost = CostOfRank(found, code.rank, nothing_.d_out, nothing_.d_in, nullptr);
      AddLoss(code, StoredBytes(delta) + cost.bytes, cost.error / energy_);
    }
    return Status::Ok();
  }

  void AddLoss(const Code& code, uint64_t bytes, double loss) {
    candidates_.push_back({code, bytes, std::sqrt(std::max(loss, 0.0)), std::max(loss, 0.0)});
  }
  // In place of the same rank among the others. It is taken as it is found: inputs have nothing to add.
  void AddFused(const EncodedWeight& fused) {
    const size_t rank = MatrixRows(fused.delta.low_rank[0].a);
    std::erase_if(candidates_, [&](const Candidate& candidate) {
      return candidate.code.kind == CodeKind::kLowRank && candidate.code.rank == rank;
    });
    const Code code = {.kind = CodeKind::kLowRank, .rank = inputs_ ? 0 : rank};
    candidates_.push_back({code, StoredBytes(fused.delta), fused.quality.relative_frobenius, 0});
  }

  void AddMeasured(const Code& code, const LinearDelta& delta, double relative_frobenius) {
    const double loss =
        inputs_ ? OutputEnergy(pool_, pair_, delta, *inputs_) / energy_ : relative_frobenius * relative_frobenius;
    AddLoss(code, StoredBytes(delta), loss);
  }

  ThreadPool& pool_;
  const WeightPair& pair_;
  const WeightInputs* inputs_;
  const LinearDelta nothing_;
  double difference_;  // |D|^2
  double energy_ = 0;  // what a loss is a share of
  std::vector<Candidate> candidates_;
};

}  // namespace

Result<std::vector<Candidate>> SurveyWeight(ThreadPool& pool, const WeightPair& pair, const SurveyOptions& options) {
  const bool has_moment = options.inputs && options.inputs->HasMoment();
  Survey survey(pool, pair, has_moment ? options.inputs : nullptr);
  DF_RETURN_IF_ERROR(survey.CheckFinite());
  if (survey.IsUnchanged()) return SurveyFixed(pool, pair, {.kind = CodeKind::kExact});
  DF_RETURN_IF_ERROR(survey.AddEncoded({.sign = {.scale = ScaleKind::kScalar}}));
  DF_RETURN_IF_ERROR(survey.AddEncoded({.sign = {.scale = ScaleKind::kRow}}));
  DF_RETURN_IF_ERROR(survey.AddPlanes());
  DF_RETURN_IF_ERROR(survey.AddRows(options.kind));
  if (options.kind == SurveyKind::kMatrix) {
    DF_RETURN_IF_ERROR(survey.AddLowRanks());
    DF_RETURN_IF_ERROR(survey.AddLowRanksOfResidual());
  }
  if (options.by_signal) survey.WeighBySignal();
  return survey.Take();
}

Result<std::vector<Candidate>> SurveyFixed(ThreadPool& pool, const WeightPair& pair, const Code& code,
                                           SurveyFor purpose) {
  DF_ASSIGN_OR_RETURN(const EncodedWeight encoded, Encode(pool, pair, code));
  const uint64_t bytes = purpose == SurveyFor::kFitted ? FittedBytes(encoded.delta) : StoredBytes(encoded.delta);
  return std::vector<Candidate>{{code, bytes, encoded.quality.relative_frobenius, 0}};
}

}  // namespace df
