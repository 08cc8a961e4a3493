#include "codec/low_rank.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "codec/fused.h"
#include "codec/residual.h"
#include "codec/row_ops.h"

namespace df {
namespace {

constexpr size_t kNoiseParts = 32;
// Of a sum of squares, what singular values in f32 tell of the rest: less is the rounding of their own sum.
constexpr double kResolvedShare = 0x1.0p-18;

// ulp(x)^2 of a stored x is 2^(2 e) times this, e its exponent.
double UlpFactor(DType dtype) {
  switch (dtype) {
    case DType::kBf16: return 0x1.0p-14;
    case DType::kF16: return 0x1.0p-20;
    default: return 0x1.0p-46;
  }
}

// 2^(2 e) of each value, added to columns; returns their sum. F16's subnormals have the ulp of its smallest exponent.
double AddExponentSquares(std::span<const float> row, float smallest, std::span<double> columns) {
  double sum = 0;
  for (size_t j = 0; j < row.size(); ++j) {
    const auto power = std::bit_cast<float>(std::bit_cast<uint32_t>(row[j]) & 0x7F800000U);
    const double square = double{std::max(power, smallest)} * double{std::max(power, smallest)};
    columns[j] += square;
    sum += square;
  }
  return sum;
}

double EnergyOf(const linalg::Svd& svd, size_t rank) {
  double energy = 0;
  for (size_t k = 0; k < rank; ++k) energy += double{svd.s[k]} * double{svd.s[k]};
  return energy;
}

// Values whose subspace is looked for where `rank` of them are wanted. Codes of all small ranks share one, and so does
// the search of a rank: what a survey measures of a rank is what encoding it gives.
size_t SketchRank(size_t rank) { return std::max(kSearchRank, std::bit_ceil(rank)); }

// Each factor's entries are rounded by up to half an ulp: relative variance ulp^2 / 3 of the half, both factors.
double FactorRounding(const linalg::Svd& svd, size_t rank, DType dtype) {
  if (dtype == DType::kF32) return 0;
  const double half_ulp = dtype == DType::kF16 ? 0x1.0p-11 : 0x1.0p-8;
  return EnergyOf(svd, rank) * 2 * half_ulp * half_ulp / 3;
}

double RestOf(const linalg::TruncatedSvd& found, size_t rank) {
  return std::max(found.sum_of_squares - EnergyOf(found.svd, rank), 0.0);
}

// F32 where rounding would be felt beside what the rank leaves, or beside what the fine-tune's own rounding leaves.
DType FactorType(const linalg::TruncatedSvd& found, size_t rank, size_t d_out, size_t d_in,
                 const RoundingNoise& noise) {
  const DType narrow = NarrowType(found.svd, rank, d_out, d_in);
  const double rest = RestOf(found, rank);
  const double felt = std::max(noise.energy, rest > kResolvedShare * found.sum_of_squares ? rest : 0.0) / 4;
  return FactorRounding(found.svd, rank, narrow) > felt ? DType::kF32 : narrow;
}

Result<linalg::TruncatedSvd> LeadingPart(ThreadPool& pool, const WeightPair& pair, const Residual& residual,
                                         size_t rank) {
  const size_t oversampling = SketchRank(rank) + linalg::RandomizedSvdOptions().oversampling - rank;
  auto found = linalg::RandomizedSvd(pool, residual.Source(), {.rank = rank, .oversampling = oversampling});
  if (found.ok() || found.status().code() != StatusCode::kInvalidArgument) return found;
  return FindNonFinite(pair);
}

EncodedWeight EncodeFound(ThreadPool& pool, const WeightPair& pair, const linalg::TruncatedSvd& found, size_t rank,
                          const RoundingNoise& noise) {
  EncodedWeight encoded = UnchangedWeight(MatrixRows(pair.fine_tune), MatrixCols(pair.fine_tune));
  const DType dtype = FactorType(found, rank, encoded.delta.d_out, encoded.delta.d_in, noise);
  AddFactors(found.svd, rank, dtype, encoded);
  encoded.quality = MeasureQuality(pool, pair, encoded.delta);
  return encoded;
}

}  // namespace

void AddFactors(const linalg::Svd& svd, size_t rank, DType dtype, EncodedWeight& encoded) {
  const size_t d_out = encoded.delta.d_out, d_in = encoded.delta.d_in, element_bytes = DTypeBytes(dtype);
  Buffer<uint8_t> a(rank * d_in * element_bytes), b(d_out * rank * element_bytes);
  std::vector<float> row(std::max(d_in, rank));
  for (size_t k = 0; k < rank; ++k) {
    for (size_t j = 0; j < d_in; ++j) row[j] = std::sqrt(svd.s[k]) * svd.vt.Row(k)[j];
    row_ops::Narrow(std::span(row).first(d_in), dtype, a.data() + k * d_in * element_bytes);
  }
  for (size_t i = 0; i < d_out; ++i) {
    for (size_t k = 0; k < rank; ++k) row[k] = std::sqrt(svd.s[k]) * svd.u.Row(i)[k];
    row_ops::Narrow(std::span(row).first(rank), dtype, b.data() + i * rank * element_bytes);
  }
  encoded.delta.low_rank.push_back(
      {.a = {dtype, Shape{rank, d_in}, a.span()}, .b = {dtype, Shape{d_out, rank}, b.span()}});
  encoded.owned.push_back(std::move(a));
  encoded.owned.push_back(std::move(b));
}

// F16 rounds to 2^-11, BF16 to 2^-8; a factor of mean square below 2^-32 would lose that among F16's subnormals, whose
// step is 2^-24. No factor exceeds sqrt(s_0), far below F16's largest for any weight that serves.
DType NarrowType(const linalg::Svd& svd, size_t rank, size_t d_out, size_t d_in) {
  const double least = *std::min_element(svd.s.data(), svd.s.data() + rank);
  const double smallest = least / static_cast<double>(std::max(d_out, d_in));
  return smallest < 0x1.0p-32 || *std::max_element(svd.s.data(), svd.s.data() + rank) > 1e8F ? DType::kBf16
                                                                                             : DType::kF16;
}

RoundingNoise MeasureRoundingNoise(ThreadPool& pool, const TensorView& fine_tune) {
  const size_t rows = MatrixRows(fine_tune), cols = MatrixCols(fine_tune);
  const size_t n_parts = std::min(kNoiseParts, rows);
  Mat<double> columns(n_parts, cols);
  Buffer<double> row_sums(rows);
  const float smallest = fine_tune.dtype == DType::kF16 ? 0x1.0p-14F : 0x1.0p-126F;
  pool.ParallelFor(n_parts, 1, [&](size_t begin, size_t end, size_t) {
    std::vector<float> row(cols);
    for (size_t part = begin; part < end; ++part) {
      for (size_t r = rows * part / n_parts; r < rows * (part + 1) / n_parts; ++r) {
        row_ops::ReadRow(fine_tune, r, row);
        row_sums[r] = AddExponentSquares(row, smallest, columns.view().RowSpan(part));
      }
    }
  });
  double energy = 0, largest_row = 0, largest_column = 0;
  for (const double sum : row_sums.span()) {
    energy += sum;
    largest_row = std::max(largest_row, sum);
  }
  for (size_t j = 0; j < cols; ++j) {
    double sum = 0;
    for (size_t part = 0; part < n_parts; ++part) sum += columns.Row(part)[j];
    largest_column = std::max(largest_column, sum);
  }
  const double variance = UlpFactor(fine_tune.dtype) / 12;
  return {.energy = energy * variance,
          .edge = std::sqrt(largest_row * variance) + std::sqrt(largest_column * variance)};
}

namespace {

// How far a product in f32 may be off, relative to its largest singular value or its norm.
double ResolutionOf(size_t d_out, size_t d_in) {
  return 0x1.0p-24 * (std::sqrt(static_cast<double>(d_out)) + std::sqrt(static_cast<double>(d_in)));
}

// Whether values no larger than the last that was found could make up the rest by rank `most`.
bool MayEnd(const linalg::TruncatedSvd& found, size_t most, const RoundingNoise& noise) {
  const size_t tried = found.svd.s.size();
  const double last = found.svd.s[tried - 1];
  return RestOf(found, tried) <= static_cast<double>(most - tried) * last * last + FusedRest(noise.energy);
}

}  // namespace

size_t RankAboveNoise(const RoundingNoise& noise, std::span<const float> values, size_t d_out, size_t d_in) {
  const double resolved = values.empty() ? 0 : double{values[0]} * ResolutionOf(d_out, d_in);
  const double edge = std::max(noise.edge, resolved);
  return static_cast<size_t>(std::ranges::count_if(values, [&](float s) { return double{s} > edge; }));
}

Result<EncodedWeight> EncodeLowRank(ThreadPool& pool, const WeightPair& pair, size_t rank) {
  const size_t d_out = MatrixRows(pair.fine_tune), d_in = MatrixCols(pair.fine_tune);
  DF_CHECK(MatrixRows(pair.base) >= d_out && MatrixCols(pair.base) == d_in);
  EncodedWeight unchanged = UnchangedWeight(d_out, d_in);
  const Residual difference(pair, unchanged.delta);
  const RoundingNoise noise = MeasureRoundingNoise(pool, pair.fine_tune);
  const size_t kept = std::min({rank > 0 ? rank : kSearchRank, d_out, d_in, kMaxCodedRank});
  DF_ASSIGN_OR_RETURN(linalg::TruncatedSvd found, LeadingPart(pool, pair, difference, kept));
  if (rank == 0) return EncodeFused(pool, pair, noise, std::move(found));
  if (found.sum_of_squares == 0) return unchanged;
  return EncodeFound(pool, pair, found, kept, noise);
}

Result<EncodedWeight> EncodeFused(ThreadPool& pool, const WeightPair& pair, const RoundingNoise& noise,
                                  linalg::TruncatedSvd found) {
  EncodedWeight none = UnchangedWeight(MatrixRows(pair.fine_tune), MatrixCols(pair.fine_tune));
  const size_t d_out = none.delta.d_out, d_in = none.delta.d_in, most = std::min({d_out, d_in, kMaxCodedRank});
  const Residual difference(pair, none.delta);
  size_t above = RankAboveNoise(noise, found.svd.s.span(), d_out, d_in);
  while (above == found.svd.s.size()) {
    const size_t tried = std::min(2 * above, most);
    if (tried == above || !MayEnd(found, most, noise)) return none;  // no value lies below the edge
    DF_ASSIGN_OR_RETURN(found, LeadingPart(pool, pair, difference, tried));
    above = RankAboveNoise(noise, found.svd.s.span(), d_out, d_in);
  }
  if (above == 0 || !IsLowRank(above, d_out, d_in)) return none;
  if (SketchRank(above) < found.svd.s.size()) {
    DF_ASSIGN_OR_RETURN(found, LeadingPart(pool, pair, difference, above));
  }
  EncodedWeight encoded = EncodeFound(pool, pair, found, above, noise);
  const FusedTruth truth{.difference = found.sum_of_squares,
                         .rounding = noise.energy,
                         .resolved = std::sqrt(found.sum_of_squares) * ResolutionOf(d_out, d_in)};
  return IsFused(pool, pair, encoded, truth) ? std::move(encoded) : std::move(none);
}

Status AddLowRankOfResidual(ThreadPool& pool, const WeightPair& pair, size_t rank, EncodedWeight& encoded) {
  DF_CHECK(encoded.delta.low_rank.empty() && rank > 0);
  if (encoded.delta.IsBase()) return Status::Ok();
  const size_t d_out = encoded.delta.d_out, d_in = encoded.delta.d_in;
  const size_t kept = std::min({rank, d_out, d_in, kMaxCodedRank});
  linalg::TruncatedSvd found;
  {
    const Residual residual(pair, encoded.delta);
    DF_ASSIGN_OR_RETURN(found, LeadingPart(pool, pair, residual, kept));
  }
  AddFactors(found.svd, kept, NarrowType(found.svd, kept, d_out, d_in), encoded);
  encoded.quality = MeasureQuality(pool, pair, encoded.delta);
  return Status::Ok();
}

uint64_t LowRankBytes(size_t d_out, size_t d_in, size_t rank) { return uint64_t{2} * rank * (d_out + d_in); }

LowRankCost CostOfRank(const linalg::TruncatedSvd& found, size_t rank, size_t d_out, size_t d_in,
                       const RoundingNoise* noise) {
  const DType dtype = noise ? FactorType(found, rank, d_out, d_in, *noise) : NarrowType(found.svd, rank, d_out, d_in);
  const double rest = std::max(RestOf(found, rank), kResolvedShare * found.sum_of_squares);
  return {.bytes = LowRankBytes(d_out, d_in, rank) * DTypeBytes(dtype) / 2,
          .error = rest + FactorRounding(found.svd, rank, dtype)};
}

}  // namespace df
