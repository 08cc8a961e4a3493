// The last stage on a block of outputs: rows of bytes, replaced rows, low-rank pairs, gain, bias, and the store into y.
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

// Outputs [first, first + n), whole tiles from a multiple of 32 on. Row i of the run has its sums of tile t at
// sums + i * stride + t * tile_stride.
struct OutputBlock {
  size_t first = 0;
  size_t n = 0;
  float* sums = nullptr;
  size_t stride = 0;
  size_t tile_stride = 0;

  float* Tile(size_t row, size_t t) const { return sums + row * stride + t * tile_stride; }
};

// take(sum, dot, place in `index`) for every listed row among the block's outputs and every row of the run.
template <class Take>
inline void ForEachListedRow(const LinearPlan& plan, const LinearRun& run, const OutputBlock& block,
                             const std::vector<int32_t>& index, const RowMajorWeight& values, const Take& take) {
  const auto low = std::lower_bound(index.begin(), index.end(), static_cast<int32_t>(block.first));
  const auto high = std::lower_bound(low, index.end(), static_cast<int32_t>(block.first + block.n));
  const auto begin = static_cast<size_t>(low - index.begin());
  const auto end = static_cast<size_t>(high - index.begin());
  for (size_t i = begin; i < end; i += kDotRows) {
    const size_t n = std::min(kDotRows, end - i);
    for (size_t row = 0; row < run.n_rows; ++row) {
      float dots[kDotRows];
      Dots(values, i, i + n, plan.x.Row(run.first_row + row), dots);
      for (size_t j = 0; j < n; ++j) {
        const size_t output = static_cast<size_t>(index[i + j]) - block.first;
        take(block.Tile(row, output / kTileRows)[output % kTileRows], dots[j], i + j);
      }
    }
  }
}

inline void ReplaceRows(const LinearPlan& plan, const LinearRun& run, const OutputBlock& block) {
  const PackedRows& rows = *run.delta()->rows;
  ForEachListedRow(plan, run, block, rows.index, rows.values, [](float& sum, float dot, size_t) { sum = dot; });
}

inline void AddByteRows(const LinearPlan& plan, const LinearRun& run, const OutputBlock& block) {
  const PackedByteRows& rows = *run.delta()->byte_rows;
  ForEachListedRow(plan, run, block, rows.index, rows.values,
                   [&](float& sum, float dot, size_t place) { sum += rows.step[place] * dot; });
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
                            .sums = block.Tile(first, tile - block.first / kTileRows),
                            .stride = block.stride});
      }
    }
    t += run.n_rows * padded;
  }
}

// All tiles of a row in one go: rows of y lie far apart, and a page or a cache set that is left has to be found again.
inline void ScaleAndStore(const LinearPlan& plan, const LinearRun& run, const OutputBlock& block) {
  const PackedDelta* delta = run.delta();
  const size_t n = std::min(block.n, run.d_out - block.first);
  const Buffer<float>& bias = delta != nullptr && !delta->bias.empty() ? delta->bias : plan.base->bias;
  const size_t n_bias = bias.size() > block.first ? std::min(n, bias.size() - block.first) : 0;
  const float* gain = delta != nullptr && !delta->gain_row.empty() ? delta->gain_row.data() + block.first : nullptr;
  for (size_t row = 0; row < run.n_rows; ++row) {
    float* y = plan.y.Row(run.first_row + row) + block.first;
    for (size_t begin = 0; begin < n; begin += kTileRows) {
      const float* sums = block.Tile(row, begin / kTileRows);
      const size_t end = std::min(n, begin + kTileRows);
      if (gain != nullptr) {
        for (size_t i = begin; i < end; ++i) y[i] = sums[i - begin] * gain[i];
      } else {
        std::copy_n(sums, end - begin, y + begin);
      }
    }
    for (size_t i = 0; i < n_bias; ++i) y[i] += bias[block.first + i];
  }
}

inline void Finish(const LinearPlan& plan, const LinearRun& run, const OutputBlock& block) {
  if (block.first >= run.d_out) return;
  if (run.delta() != nullptr) {
    if (run.delta()->byte_rows) AddByteRows(plan, run, block);
    if (run.delta()->rows) ReplaceRows(plan, run, block);
    AddLowRank(run, block);
  }
  ScaleAndStore(plan, run, block);
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAFOLD_KERNELS_CPU_EPILOGUE_INL_H_
