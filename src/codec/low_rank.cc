#include "codec/low_rank.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "codec/residual.h"
#include "codec/row_ops.h"

namespace df {
namespace {

// Values looked for first; doubled until one lies below the edge of the noise.
constexpr size_t kFirstRank = 32;
constexpr size_t kNoiseParts = 32;

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

// Each factor's entries are rounded by up to half an ulp: relative variance ulp^2 / 3 of the half, both factors.
DType FactorType(const linalg::Svd& svd, size_t rank, size_t d_out, size_t d_in, const RoundingNoise& noise) {
  const DType narrow = NarrowType(svd, rank, d_out, d_in);
  const double half_ulp = narrow == DType::kF16 ? 0x1.0p-11 : 0x1.0p-8;
  const double rounding = EnergyOf(svd, rank) * 2 * half_ulp * half_ulp / 3;
  return rounding > noise.energy / 4 ? DType::kF32 : narrow;
}

Result<linalg::TruncatedSvd> LeadingPart(ThreadPool& pool, const WeightPair& pair, const Residual& residual,
                                         size_t rank) {
  auto found = linalg::RandomizedSvd(pool, residual.Source(), {.rank = rank});
  if (found.ok() || found.status().code() != StatusCode::kInvalidArgument) return found;
  return FindNonFinite(pair);
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

size_t RankAboveNoise(const RoundingNoise& noise, std::span<const float> values, size_t d_out, size_t d_in) {
  const double sizes = std::sqrt(static_cast<double>(d_out)) + std::sqrt(static_cast<double>(d_in));
  const double resolved = values.empty() ? 0 : double{values[0]} * 0x1.0p-24 * sizes;
  const double edge = std::max(noise.edge, resolved);
  return static_cast<size_t>(std::ranges::count_if(values, [&](float s) { return double{s} > edge; }));
}

Result<EncodedWeight> EncodeLowRank(ThreadPool& pool, const WeightPair& pair, size_t rank) {
  const size_t d_out = MatrixRows(pair.fine_tune), d_in = MatrixCols(pair.fine_tune);
  DF_CHECK(MatrixRows(pair.base) >= d_out && MatrixCols(pair.base) == d_in);
  EncodedWeight encoded = UnchangedWeight(d_out, d_in);
  const LinearDelta nothing = encoded.delta;
  const Residual difference(pair, nothing);
  const RoundingNoise noise = MeasureRoundingNoise(pool, pair.fine_tune);
  const size_t most = std::min({d_out, d_in, kMaxCodedRank});
  linalg::TruncatedSvd found;
  size_t kept = rank;
  for (size_t tried = rank > 0 ? std::min(rank, most) : std::min(kFirstRank, most);;
       tried = std::min(2 * tried, most)) {
    DF_ASSIGN_OR_RETURN(found, LeadingPart(pool, pair, difference, tried));
    if (found.sum_of_squares == 0) return encoded;
    kept = rank > 0 ? tried : RankAboveNoise(noise, found.svd.s.span(), d_out, d_in);
    if (rank > 0 || kept < tried || tried == most) break;
  }
  if (kept > 0) {
    AddFactors(found.svd, kept, FactorType(found.svd, kept, d_out, d_in, noise), encoded);
  }
  encoded.quality = MeasureQuality(pool, pair, encoded.delta);
  return encoded;
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

}  // namespace df
