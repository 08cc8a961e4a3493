#include "merge/magnitude_cut.h"

#include <algorithm>
#include <bit>

#include "merge/elementwise.h"
#include "tensor/mat.h"

namespace df::merge {
namespace {

// The 31 bits of a magnitude in two digits: 2^15 counters of 8 bytes for the upper one, 2^16 for the lower.
constexpr size_t kUpper = size_t{1} << 15, kLower = size_t{1} << 16;

uint32_t MagnitudeBits(float value) { return std::bit_cast<uint32_t>(value) & 0x7FFFFFFFu; }

// visit(d, first, thread) over the difference of `model`, a part after the other on each thread.
template <typename Visit>
void ForEachDifference(ThreadPool& pool, const TensorGroup& group, size_t model, const Visit& visit) {
  const size_t n = group.models[model].elements(), n_blocks = (n + kBlock - 1) / kBlock;
  pool.ParallelFor(n_blocks, GrainFor(kBlock * sizeof(float)), [&](size_t begin, size_t end, size_t thread) {
    std::vector<float> memory(kBlock);
    for (size_t block = begin; block < end; ++block) {
      const size_t first = block * kBlock;
      const std::span<float> d = std::span(memory).first(std::min(kBlock, n - first));
      ReadDifference(group, model, first, d);
      visit(std::span<const float>(d), first, thread);
    }
  });
}

// From the largest digit down: the digit in which the `rank`-th entry lies, counted from 1, and its rank there.
struct Place {
  size_t digit = 0, rank = 0;
};
Place FindPlace(const Mat<uint64_t>& counts, size_t rank) {
  for (size_t digit = counts.cols(); digit-- > 0;) {
    size_t count = 0;
    for (size_t thread = 0; thread < counts.rows(); ++thread) count += counts.Row(thread)[digit];
    if (rank <= count) return {digit, rank};
    rank -= count;
  }
  return {0, rank};
}

// One past the flat index of the `rank`-th entry, from 1, whose magnitude is `bits`.
size_t EndOfEqual(ThreadPool& pool, const TensorGroup& group, size_t model, uint32_t bits, size_t rank) {
  const size_t n = group.models[model].elements();
  Buffer<uint32_t> of_block((n + kBlock - 1) / kBlock);
  ForEachDifference(pool, group, model, [&](std::span<const float> d, size_t first, size_t) {
    uint32_t count = 0;
    for (const float value : d) count += MagnitudeBits(value) == bits ? 1U : 0U;
    of_block[first / kBlock] = count;
  });
  size_t block = 0;
  while (of_block[block] < rank) rank -= of_block[block++];
  std::vector<float> d(std::min(kBlock, n - block * kBlock));
  ReadDifference(group, model, block * kBlock, d);
  size_t at = 0;
  while (MagnitudeBits(d[at]) != bits || --rank > 0) ++at;
  return block * kBlock + at + 1;
}

MagnitudeCut FindCut(ThreadPool& pool, const TensorGroup& group, size_t model, size_t n_kept) {
  Mat<uint64_t> upper(pool.n_threads(), kUpper), lower(pool.n_threads(), kLower);
  ForEachDifference(pool, group, model, [&](std::span<const float> d, size_t, size_t thread) {
    for (const float value : d) ++upper.Row(thread)[MagnitudeBits(value) >> 16];
  });
  const Place high = FindPlace(upper, n_kept);
  ForEachDifference(pool, group, model, [&](std::span<const float> d, size_t, size_t thread) {
    for (const float value : d) {
      const uint32_t bits = MagnitudeBits(value);
      if (bits >> 16 == high.digit) ++lower.Row(thread)[bits & 0xFFFF];
    }
  });
  const Place low = FindPlace(lower, high.rank);
  const auto bits = static_cast<uint32_t>(high.digit << 16 | low.digit);
  size_t n_equal = 0;
  for (size_t thread = 0; thread < lower.rows(); ++thread) n_equal += lower.Row(thread)[low.digit];
  return {bits, n_equal == low.rank ? SIZE_MAX : EndOfEqual(pool, group, model, bits, low.rank)};
}

}  // namespace

std::vector<MagnitudeCut> FindMagnitudeCuts(ThreadPool& pool, const TensorGroup& group,
                                            std::span<const double> densities) {
  const size_t n = group.models[0].elements();
  std::vector<MagnitudeCut> cuts(group.models.size());
  for (size_t i = 0; i < cuts.size(); ++i) {
    const auto n_kept = std::max<size_t>(1, static_cast<size_t>(densities[i] * static_cast<double>(n)));
    if (n_kept < n) cuts[i] = FindCut(pool, group, i, n_kept);
  }
  return cuts;
}

}  // namespace df::merge
