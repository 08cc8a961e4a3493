#include "codec/survey.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "codec/low_rank.h"
#include "codec/residual.h"
#include "codec/row_ops.h"
#include "linalg/randomized_svd.h"

namespace df {
namespace {

constexpr size_t kSurveyPlanes = 4;
constexpr size_t kSurveyRank = 64;  // bytes of half a plane at 4096 x 4096: signs are better from there on
// What is left of a fused adapter is rounding: within this factor of its expected energy.
constexpr double kRoundingMargin = 1.5;

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
      squares[row] = row_ops::MagnitudesOf(d).squares;
    }
  });
  double sum = 0;
  for (const double square : squares.span()) sum += square;
  return sum;
}

class Survey {
 public:
  Survey(ThreadPool& pool, const WeightPair& pair)
      : pool_(pool),
        pair_(pair),
        d_out_(MatrixRows(pair.fine_tune)),
        d_in_(MatrixCols(pair.fine_tune)),
        difference_(MeasureDifference(pool, pair)) {}

  bool IsUnchanged() const { return difference_ == 0; }
  Status CheckFinite() const { return std::isfinite(difference_) ? Status::Ok() : FindNonFinite(pair_); }

  Status AddEncoded(const Code& code) {
    DF_ASSIGN_OR_RETURN(const EncodedWeight encoded, Encode(pool_, pair_, code));
    AddRelative(code, StoredBytes(encoded.delta), encoded.quality.relative_frobenius);
    return Status::Ok();
  }

  // Rank-1 planes one after another: a code of p planes is the first p of more.
  Status AddPlanes() {
    DF_ASSIGN_OR_RETURN(planes_, Encode(pool_, pair_, {.sign = {.n_planes = kSurveyPlanes}}));
    LinearDelta partial = planes_.delta;
    for (size_t p = 1; p <= planes_.delta.planes.size(); ++p) {
      partial.planes.assign(planes_.delta.planes.begin(), planes_.delta.planes.begin() + static_cast<ptrdiff_t>(p));
      const Quality quality = MeasureQuality(pool_, pair_, partial);
      AddRelative({.sign = {.n_planes = p}}, StoredBytes(partial), quality.relative_frobenius);
    }
    return Status::Ok();
  }

  Status AddLowRanks() {
    LinearDelta delta;
    delta.d_out = d_out_;
    delta.d_in = d_in_;
    DF_ASSIGN_OR_RETURN(const linalg::TruncatedSvd found, LeadingPart(delta));
    const RoundingNoise noise = MeasureRoundingNoise(pool_, pair_.fine_tune);
    const size_t above = RankAboveNoise(noise, found.svd.s.span(), d_out_, d_in_);
    double rest = found.sum_of_squares;
    for (size_t rank = 1; rank <= found.svd.s.size(); ++rank) {
      rest -= double{found.svd.s[rank - 1]} * double{found.svd.s[rank - 1]};
      const bool is_fused = rank == above && rest <= kRoundingMargin * noise.energy;
      if (!is_fused && !std::has_single_bit(rank)) continue;
      Add({.kind = CodeKind::kLowRank, .rank = rank}, LowRankBytes(d_out_, d_in_, rank), rest, is_fused ? 0 : rest);
    }
    return Status::Ok();
  }

  // After one plane; AddPlanes came before.
  Status AddLowRanksOfResidual() {
    LinearDelta signs = planes_.delta;
    signs.planes.resize(1);
    DF_ASSIGN_OR_RETURN(const linalg::TruncatedSvd found, LeadingPart(signs));
    double rest = found.sum_of_squares;
    for (size_t rank = 1; rank <= found.svd.s.size(); ++rank) {
      rest -= double{found.svd.s[rank - 1]} * double{found.svd.s[rank - 1]};
      if (!std::has_single_bit(rank)) continue;
      Add({.rank = rank}, StoredBytes(signs) + LowRankBytes(d_out_, d_in_, rank), rest, rest);
    }
    return Status::Ok();
  }

  std::vector<Candidate> Take() { return std::move(candidates_); }

 private:
  Result<linalg::TruncatedSvd> LeadingPart(const LinearDelta& delta) {
    const Residual residual(pair_, delta);
    return linalg::RandomizedSvd(pool_, residual.Source(), {.rank = std::min({kSurveyRank, d_out_, d_in_})});
  }

  // What f32 leaves of a whole may come out below zero.
  void Add(const Code& code, uint64_t bytes, double error_energy, double lost_energy) {
    const double error = std::sqrt(std::max(error_energy, 0.0) / difference_);
    candidates_.push_back({code, bytes, error, std::max(lost_energy, 0.0) / difference_});
  }
  void AddRelative(const Code& code, uint64_t bytes, double error) {
    candidates_.push_back({code, bytes, error, error * error});
  }

  ThreadPool& pool_;
  const WeightPair& pair_;
  size_t d_out_, d_in_;
  double difference_;  // |D|^2
  EncodedWeight planes_;
  std::vector<Candidate> candidates_;
};

}  // namespace

Result<std::vector<Candidate>> SurveyWeight(ThreadPool& pool, const WeightPair& pair, SurveyKind kind) {
  Survey survey(pool, pair);
  DF_RETURN_IF_ERROR(survey.CheckFinite());
  if (survey.IsUnchanged()) return SurveyFixed(pool, pair, {.kind = CodeKind::kExact});
  DF_RETURN_IF_ERROR(survey.AddEncoded({.sign = {.scale = ScaleKind::kScalar}}));
  DF_RETURN_IF_ERROR(survey.AddEncoded({.sign = {.scale = ScaleKind::kRow}}));
  DF_RETURN_IF_ERROR(survey.AddPlanes());
  DF_RETURN_IF_ERROR(survey.AddEncoded({.kind = CodeKind::kByteRows}));
  DF_RETURN_IF_ERROR(survey.AddEncoded({.kind = CodeKind::kExact}));
  if (kind == SurveyKind::kMatrix) {
    DF_RETURN_IF_ERROR(survey.AddLowRanks());
    DF_RETURN_IF_ERROR(survey.AddLowRanksOfResidual());
  }
  return survey.Take();
}

Result<std::vector<Candidate>> SurveyFixed(ThreadPool& pool, const WeightPair& pair, const Code& code) {
  DF_ASSIGN_OR_RETURN(const EncodedWeight encoded, Encode(pool, pair, code));
  return std::vector<Candidate>{{code, StoredBytes(encoded.delta), encoded.quality.relative_frobenius, 0}};
}

}  // namespace df
