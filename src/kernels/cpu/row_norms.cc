// A tile of 32 rows at a time, some columns of it: the base with signs folded in, as prefill unpacks it; rows of bytes;
// replaced rows; and B A, which is a product of B's tile with columns of A as its rows of activations, summed into the
// same panel.
#include "kernels/cpu/row_norms.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/row_norms.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include <algorithm>
#include <cmath>
#include <vector>

#include "hwy/highway.h"
#include "kernels/cpu/block_product-inl.h"
#include "kernels/cpu/panel-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

// scale * A as rows of activations: for each group of columns [padded rank][group size].
Buffer<float> PackColumns(KernelContext& context, const PackedLowRank& pair) {
  const size_t d_in = pair.a.d_in;
  const size_t padded = (pair.rank + 1) / 2 * 2;
  Buffer<float> packed(d_in * padded);
  const size_t n_groups = (d_in + kTileGroup - 1) / kTileGroup;
  context.pool.ParallelFor(n_groups, 16, [&](size_t begin, size_t end, size_t /*thread*/) {
    for (size_t first = begin * kTileGroup; first < std::min(d_in, end * kTileGroup); first += kTileGroup) {
      const size_t size = std::min(kTileGroup, d_in - first);
      float* to = packed.data() + first * padded;
      for (size_t j = 0; j < pair.rank; ++j) {
        for (size_t k = 0; k < size; ++k) to[j * size + k] = pair.scale * pair.a.At(j, first + k);
      }
    }
  });
  return packed;
}

// A multiple of the group, so that no group is cut by the end of a panel.
inline constexpr size_t kNormColumns = kPanelColumns / (8 * kTileGroup) * (8 * kTileGroup);
static_assert(kNormColumns > 0);

class TileNorms {
 public:
  TileNorms(const PackedWeight& base, const PackedDelta& delta, std::span<const Buffer<float>> columns)
      : weight_(delta.raw ? *delta.raw : base), delta_(delta), columns_(columns) {}

  // norms [32] of the rows of one tile. panel [kNormColumns][32], staged as many bytes (for a mapped weight).
  void operator()(size_t tile, float* panel, uint8_t* staged, float* norms) const {
    double sums[kTileRows] = {};
    for (size_t first = 0; first < delta_.d_in; first += kNormColumns) {
      const size_t n = std::min(kNormColumns, delta_.d_in - first);
      Unpack(tile, first, n, panel, staged);
      AddByteRows(tile, first, n, panel);
      ReplaceRows(tile, first, n, panel);
      for (size_t q = 0; q < columns_.size(); ++q) AddProduct(tile, first, n, q, panel);
      for (size_t k = 0; k < n; ++k) {
        for (size_t r = 0; r < kTileRows; ++r) sums[r] += double{panel[k * kTileRows + r]} * panel[k * kTileRows + r];
      }
    }
    for (size_t r = 0; r < kTileRows; ++r) norms[r] = static_cast<float>(std::sqrt(sums[r]));
  }

 private:
  void Unpack(size_t tile, size_t first, size_t n, float* panel, uint8_t* staged) const {
    UnpackPanel({.weight = tile < weight_.n_tiles() ? &weight_ : nullptr,
                 .dtype = weight_.dtype,
                 .tile = tile,
                 .first = first,
                 .n = (n + 1) / 2 * 2,
                 .n_real = n,
                 .panel = panel,
                 .staged = staged},
                delta_.planes.empty() ? nullptr : &delta_);
  }

  // take(place in `index`, row of the tile) for every row of the tile that is listed.
  template <class Take>
  static void ForEachListed(const std::vector<int32_t>& index, size_t tile, const Take& take) {
    const auto begin = std::lower_bound(index.begin(), index.end(), static_cast<int32_t>(tile * kTileRows));
    for (auto row = begin; row != index.end() && static_cast<size_t>(*row) < (tile + 1) * kTileRows; ++row) {
      take(static_cast<size_t>(row - index.begin()), static_cast<size_t>(*row) - tile * kTileRows);
    }
  }

  void AddByteRows(size_t tile, size_t first, size_t n, float* panel) const {
    if (!delta_.byte_rows) return;
    const PackedByteRows& rows = *delta_.byte_rows;
    ForEachListed(rows.index, tile, [&](size_t i, size_t r) {
      for (size_t k = 0; k < n; ++k) panel[k * kTileRows + r] += rows.step[i] * rows.values.At(i, first + k);
    });
  }

  void ReplaceRows(size_t tile, size_t first, size_t n, float* panel) const {
    if (!delta_.rows) return;
    const PackedRows& rows = *delta_.rows;
    ForEachListed(rows.index, tile, [&](size_t i, size_t r) {
      for (size_t k = 0; k < n; ++k) panel[k * kTileRows + r] = rows.values.At(i, first + k);
    });
  }

  void AddProduct(size_t tile, size_t first, size_t n, size_t q, float* panel) const {
    const PackedLowRank& pair = delta_.low_rank[q];
    const size_t padded = (pair.rank + 1) / 2 * 2;
    const BlockProductFn* products = TileProductsOf(pair.b.dtype).reuse;
    for (size_t k = 0; k < n; k += kTileGroup) {
      const size_t size = std::min(kTileGroup, n - k);
      products[size - 1]({.weights = pair.b.tiles.data() + tile * pair.b.tile_bytes(),
                          .n_pairs = padded / 2,
                          .x = columns_[q].data() + (first + k) * padded,
                          .sums = panel + k * kTileRows,
                          .stride = kTileRows});
    }
  }

  const PackedWeight& weight_;
  const PackedDelta& delta_;
  std::span<const Buffer<float>> columns_;  // a low-rank pair each
};

void RowNormsImpl(KernelContext& context, const PackedWeight& base, const PackedDelta& delta, std::span<float> norms) {
  std::vector<Buffer<float>> columns;
  for (const PackedLowRank& pair : delta.low_rank) columns.push_back(PackColumns(context, pair));
  const TileNorms tile_norms(base, delta, columns);
  const size_t n_tiles = (norms.size() + kTileRows - 1) / kTileRows;
  context.pool.ParallelFor(n_tiles, 1, [&](size_t begin, size_t end, size_t /*thread*/) {
    alignas(kAlignment) float panel[kNormColumns * kTileRows];
    alignas(kAlignment) uint8_t staged[sizeof(panel)];
    float tile_of_norms[kTileRows];
    for (size_t tile = begin; tile < end; ++tile) {
      tile_norms(tile, panel, staged, tile_of_norms);
      const size_t first = tile * kTileRows;
      std::copy_n(tile_of_norms, std::min(kTileRows, norms.size() - first), norms.data() + first);
    }
  });
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace df::kernels::cpu {

HWY_EXPORT(RowNormsImpl);

void RowNorms(KernelContext& context, const PackedWeight& base, const PackedDelta& delta, std::span<float> norms) {
  HWY_DYNAMIC_DISPATCH(RowNormsImpl)(context, base, delta, norms);
}

}  // namespace df::kernels::cpu
#endif  // HWY_ONCE
