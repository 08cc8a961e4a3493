// The last stage on a block of outputs: replaced rows, low-rank pairs, gain, bias, and the store into y.
#if defined(DELTAFOLD_KERNELS_CPU_EPILOGUE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAFOLD_KERNELS_CPU_EPILOGUE_INL_H_
#undef DELTAFOLD_KERNELS_CPU_EPILOGUE_INL_H_
#else
#define DELTAFOLD_KERNELS_CPU_EPILOGUE_INL_H_
#endif

#include <algorithm>

#include "kernels/cpu/block_product-inl.h"
#include "kernels/cpu/dot-inl.h"
#include "kernels/cpu/linear_plan.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

// Outputs [first, first + n), first a multiple of 32, n 32 or 64: sums[i] belongs to row i of the run.
struct OutputBlock {
  size_t first = 0;
  size_t n = 0;
  float* sums = nullptr;
  size_t stride = 0;
};

inline void ReplaceRows(const LinearPlan& plan, const LinearRun& run, const OutputBlock& block) {
  const PackedRows& rows = *run.delta()->rows;
  const auto low = std::lower_bound(rows.index.begin(), rows.index.end(), static_cast<int32_t>(block.first));
  const auto high = std::lower_bound(low, rows.index.end(), static_cast<int32_t>(block.first + block.n));
  const auto begin = static_cast<size_t>(low - rows.index.begin());
  const auto end = static_cast<size_t>(high - rows.index.begin());
  for (size_t i = begin; i < end; i += kDotRows) {
    const size_t n = std::min(kDotRows, end - i);
    for (size_t row = 0; row < run.n_rows; ++row) {
      float dots[kDotRows];
      Dots(rows.values, i, i + n, plan.x.Row(run.first_row + row), dots);
      for (size_t j = 0; j < n; ++j) {
        block.sums[row * block.stride + static_cast<size_t>(rows.index[i + j]) - block.first] = dots[j];
      }
    }
  }
}

// sums += t B^T, t as MultiplyDown left it.
inline void AddLowRank(const LinearRun& run, const OutputBlock& block) {
  const float* t = run.low_rank;
  const size_t n_groups = GroupCount(run.n_rows, kTileGroup);
  for (const PackedLowRank& pair : run.delta()->low_rank) {
    const size_t padded = PaddedRank(pair.rank);
    const BlockProductFn* products = TileProductsOf(pair.b.dtype).reuse;
    const size_t last_tile = std::min(pair.b.n_tiles(), (block.first + block.n) / kTileRows);
    for (size_t tile = block.first / kTileRows; tile < last_tile; ++tile) {
      for (size_t i = 0; i < n_groups; ++i) {
        const size_t first = GroupBegin(run.n_rows, n_groups, i);
        const size_t size = GroupBegin(run.n_rows, n_groups, i + 1) - first;
        products[size - 1]({.weights = pair.b.tiles.data() + tile * pair.b.tile_bytes(),
                            .n_pairs = padded / 2,
                            .x = t + first * padded,
                            .sums = block.sums + first * block.stride + tile * kTileRows - block.first,
                            .stride = block.stride});
      }
    }
    t += run.n_rows * padded;
  }
}

inline void ScaleAndStore(const LinearPlan& plan, const LinearRun& run, const OutputBlock& block) {
  const PackedDelta* delta = run.delta();
  const size_t n = std::min(block.n, run.d_out - block.first);
  const Buffer<float>& bias = delta != nullptr && !delta->bias.empty() ? delta->bias : plan.base->bias;
  const size_t n_bias = bias.size() > block.first ? std::min(n, bias.size() - block.first) : 0;
  const float* gain = delta != nullptr && !delta->gain_row.empty() ? delta->gain_row.data() + block.first : nullptr;
  for (size_t row = 0; row < run.n_rows; ++row) {
    const float* sums = block.sums + row * block.stride;
    float* y = plan.y.Row(run.first_row + row) + block.first;
    if (gain != nullptr) {
      for (size_t i = 0; i < n; ++i) y[i] = sums[i] * gain[i];
    } else {
      std::copy_n(sums, n, y);
    }
    for (size_t i = 0; i < n_bias; ++i) y[i] += bias[block.first + i];
  }
}

inline void Finish(const LinearPlan& plan, const LinearRun& run, const OutputBlock& block) {
  if (block.first >= run.d_out) return;
  if (run.delta() != nullptr) {
    if (run.delta()->rows) ReplaceRows(plan, run, block);
    AddLowRank(run, block);
  }
  ScaleAndStore(plan, run, block);
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAFOLD_KERNELS_CPU_EPILOGUE_INL_H_
