// The first stage of a Linear call: what all weight tiles share is made once from the rows of x, by all threads.
#if defined(DELTAFOLD_KERNELS_CPU_ACTIVATIONS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAFOLD_KERNELS_CPU_ACTIVATIONS_INL_H_
#undef DELTAFOLD_KERNELS_CPU_ACTIVATIONS_INL_H_
#else
#define DELTAFOLD_KERNELS_CPU_ACTIVATIONS_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "kernels/cpu/block_product-inl.h"
#include "kernels/cpu/dot-inl.h"
#include "kernels/cpu/dot_bf16.h"
#include "kernels/cpu/linear_plan.h"
#include "kernels/cpu/sign_tables-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

// Items that one thread takes at least: 64 KB of memory work (about 5 us) outweighs waking another thread.
constexpr size_t Grain(size_t bytes_per_item) {
  return std::max<size_t>(1, (size_t{64} << 10) / std::max<size_t>(1, bytes_per_item));
}

// Columns [k, k + 4) of rows [g, g + 4) into x[k][g].
HWY_INLINE void Transpose4x4(const float* const* rows, size_t k, size_t size, float* to) {
  const hn::Full128<float> d;
  const hn::Full128<uint64_t> d64;
  const auto load = [&](size_t row) HWY_ATTR { return hn::LoadU(d, rows[row] + k); };
  const auto r0 = load(0), r1 = load(1), r2 = load(2), r3 = load(3);
  const auto lo01 = hn::BitCast(d64, hn::InterleaveLower(d, r0, r1));
  const auto lo23 = hn::BitCast(d64, hn::InterleaveLower(d, r2, r3));
  const auto hi01 = hn::BitCast(d64, hn::InterleaveUpper(d, r0, r1));
  const auto hi23 = hn::BitCast(d64, hn::InterleaveUpper(d, r2, r3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, lo01, lo23)), d, to);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, lo01, lo23)), d, to + size);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, hi01, hi23)), d, to + 2 * size);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, hi01, hi23)), d, to + 3 * size);
}

// [group size] rows of d_in -> [padded columns][group size], or pairs of bf16.
inline void PackGroup(const LinearPlan& plan, const LinearSet& set, const RowGroup& group) {
  const float* rows[kPanelGroup];
  for (size_t g = 0; g < group.size; ++g) rows[g] = plan.x.Row(set.rows[group.position + g]);
  if (set.is_bf16) return PackDotBf16Rows(rows, group.size, plan.d_in, reinterpret_cast<uint32_t*>(group.x));
  const size_t n_columns = plan.d_in / 4 * 4;
  const size_t n_rows = group.size / 4 * 4;
  for (size_t k = 0; k < n_columns; k += 4) {
    for (size_t g = 0; g < n_rows; g += 4) {
      Transpose4x4(rows + g, k, group.size, group.x + k * group.size + g);
    }
  }
  for (size_t g = 0; g < group.size; ++g) {
    for (size_t k = g < n_rows ? n_columns : 0; k < plan.d_in; ++k) group.x[k * group.size + g] = rows[g][k];
    if (plan.d_in % 2 != 0) group.x[plan.d_in * group.size + g] = 0.0F;
  }
}

inline void PackRows(KernelContext& context, const LinearPlan& plan) {
  const size_t bytes = plan.padded_cols() * kPanelGroup * sizeof(float);
  context.pool.ParallelFor(plan.groups.size(), Grain(bytes), [&](size_t begin, size_t end, size_t) {
    for (size_t i = begin; i < end; ++i) PackGroup(plan, plan.Set(plan.group_set[i]), plan.groups[i]);
  });
}

// Sign tables of one block of 512 columns.
template <class Signs>
inline void BuildBlock(const LinearPlan& plan, const TableItem& item, size_t block) {
  const size_t first = block * kSignBlockColumns;
  const size_t n = std::min(kSignBlockColumns, plan.d_in - first);
  uint8_t* tables = item.tables + block * kSignTableBytes<Signs>;
  if (item.col_scale == nullptr) return Signs::Build(item.x + first, n, tables);
  float scaled[kSignBlockColumns];
  for (size_t k = 0; k < n; ++k) scaled[k] = item.x[first + k] * item.col_scale[first + k];
  Signs::Build(scaled, n, tables);
}

template <class Signs>
inline void BuildSignTables(KernelContext& context, const LinearPlan& plan) {
  const size_t n_blocks = (plan.d_in + kSignBlockColumns - 1) / kSignBlockColumns;
  context.pool.ParallelFor(plan.tables.size() * n_blocks, Grain(kSignTableBytes<Signs>),
                           [&](size_t begin, size_t end, size_t) {
                             for (size_t i = begin; i < end; ++i) {
                               BuildBlock<Signs>(plan, plan.tables[i / n_blocks], i % n_blocks);
                             }
                           });
}

// Products [begin, end) of one item with all rows of its run, stored by groups: [padded rank][group size].
inline void DownProducts(const LinearPlan& plan, const LowRankItem& item, size_t begin, size_t end) {
  const size_t rank = item.pair->rank;
  const size_t padded = PaddedRank(rank);
  const size_t n_groups = GroupCount(item.run->n_rows, kTileGroup);
  for (size_t j = begin; j < end; j += kDotRows) {
    const size_t n = std::min(kDotRows, end - j);
    for (size_t i = 0; i < n_groups; ++i) {
      const size_t first = GroupBegin(item.run->n_rows, n_groups, i);
      const size_t size = GroupBegin(item.run->n_rows, n_groups, i + 1) - first;
      float* out = item.out + first * padded;
      for (size_t g = 0; g < size; ++g) {
        float dots[kDotRows];
        Dots(item.pair->a, j, j + n, plan.x.Row(item.run->first_row + first + g), dots);
        for (size_t jj = 0; jj < n; ++jj) out[(j + jj) * size + g] = dots[jj] * item.pair->scale;
        if (j + n == rank && padded > rank) out[rank * size + g] = 0.0F;
      }
    }
  }
}

inline void MultiplyDown(KernelContext& context, const LinearPlan& plan) {
  const size_t product_bytes = plan.d_in * sizeof(uint16_t);
  context.pool.ParallelFor(plan.n_low_rank_products, Grain(product_bytes), [&](size_t begin, size_t end, size_t) {
    for (const LowRankItem& item : plan.low_rank) {
      const size_t first = std::max(begin, item.first);
      const size_t last = std::min(end, item.first + item.pair->rank);
      if (first < last) DownProducts(plan, item, first - item.first, last - item.first);
    }
  });
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAFOLD_KERNELS_CPU_ACTIVATIONS_INL_H_
