// Prefill's weight panel: columns of one P32 tile as f32, in F32Tile's layout [pairs][2][32], with the sign planes
// folded in:
//
//   panel[k][r] = w[r][k] + sum_p row_p[r] * col_p[k] * s_p[r][k]
//
// This is the only place where W_eff exists: 32 rows x kPanelColumns. Per vector of outputs and column: the sign bit is
// shifted to the top, flips the scale, and is added.
#if defined(DELTAFOLD_KERNELS_CPU_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAFOLD_KERNELS_CPU_PANEL_INL_H_
#undef DELTAFOLD_KERNELS_CPU_PANEL_INL_H_
#else
#define DELTAFOLD_KERNELS_CPU_PANEL_INL_H_
#endif

#include <algorithm>

#include "kernels/cpu/block_product-inl.h"
#include "kernels/cpu/linear_plan.h"
#include "kernels/cpu/packed.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

// 192 columns x 32 outputs x 4 bytes = 24 KB: the panel stays in the first level (32 to 48 KB) while the rows stream
// past it. A multiple of 8.
inline constexpr size_t kPanelColumns = 192;
inline constexpr size_t kTileVectors = kTileRows / kLanes;

// Columns [first, first + n) of a tile; n even (padded), `n_real` of them exist.
struct PanelArgs {
  const PackedWeight* weight = nullptr;  // null: no weight, zeros
  DType dtype = DType::kBf16;
  size_t tile = 0;
  size_t first = 0;
  size_t n = 0;
  size_t n_real = 0;
  float* panel = nullptr;
  uint8_t* staged = nullptr;  // a mapped weight's columns in P32, as many bytes as the panel has
};

// The first of the columns in P32.
inline const uint8_t* WeightsOf(const PanelArgs& args) {
  const PackedWeight& weight = *args.weight;
  if (weight.IsMapped()) {
    StageBlock(weight, {.tile = args.tile, .first = args.first, .n_cols = args.n_real, .next_tile = args.tile + 1},
               args.staged);
    return args.staged;
  }
  return weight.tiles.data() + args.tile * weight.tile_bytes() + args.first * kTileRows * DTypeBytes(args.dtype);
}

struct SignLines {
  const uint8_t* line = nullptr;     // R32 line of the panel's first octet
  const float* row_scale = nullptr;  // [32]
  const float* col_scale = nullptr;  // of the panel's first column, or null
};

inline SignLines LinesOf(const PackedPlane& plane, const PanelArgs& args) {
  const size_t n_octets = (plane.d_in + 7) / 8;
  return {.line = plane.bits.data() + (args.tile * n_octets + args.first / 8) * kTileRows,
          .row_scale = plane.row_scale.data() + args.tile * kTileRows,
          .col_scale = plane.col_scale.empty() ? nullptr : plane.col_scale.data() + args.first};
}

template <class Tile>
inline void UnpackPlain(const PanelArgs& args, const uint8_t* pair) {
  float* to = args.panel;
  for (size_t k = 0; k < args.n; k += 2, pair += Tile::kPairBytes, to += 2 * kTileRows) {
    DF_UNROLL
    for (size_t v = 0; v < kTileVectors; ++v) {
      const uint8_t* from = pair + v * kLanes * Tile::kRowBytes;
      hn::StoreU(Tile::Even(from), FloatTag(), to + v * kLanes);
      hn::StoreU(Tile::Odd(from), FloatTag(), to + kTileRows + v * kLanes);
    }
  }
}

// scale with the sign of the top bit: 1 = +.
HWY_INLINE FloatVec Signed(FloatVec scale, UintVec bits) {
  const UintVec minus = hn::AndNot(bits, hn::Set(UintTag(), 0x80000000u));
  return hn::Xor(scale, hn::BitCast(FloatTag(), minus));
}

// `plus` where the top bit is set, else `minus`, its negative. With 8 lanes a blend by sign bits is one operation
// instead of two; with 16 these two become one of three operands.
HWY_INLINE FloatVec PlusOrMinus(FloatVec plus, FloatVec minus, UintVec bits) {
  if constexpr (kLanes != 8) return Signed(plus, bits);
  return hn::IfNegativeThenElse(hn::BitCast(FloatTag(), bits), plus, minus);
}

// Four pairs of one octet, last column first: a shift by one brings the next sign to the top.
template <class Tile, bool kColumns>
HWY_INLINE void FoldOctet(const uint8_t* weights, const SignLines& signs, size_t n_pairs, const float* col, float* to) {
  const FloatTag d;
  const UintTag du;
  const hn::Rebind<uint8_t, UintTag> d8;
  DF_UNROLL
  for (size_t v = 0; v < kTileVectors; ++v) {
    const FloatVec row = hn::LoadU(d, signs.row_scale + v * kLanes);
    const FloatVec minus_row = hn::Neg(row);
    UintVec bits = hn::PromoteTo(du, hn::LoadU(d8, signs.line + v * kLanes));
    bits = hn::ShiftLeftSame(bits, static_cast<int>(32 - 2 * n_pairs));
    for (size_t pair = n_pairs; pair-- > 0;) {
      const uint8_t* from = weights + pair * Tile::kPairBytes + v * kLanes * Tile::kRowBytes;
      FloatVec even = Tile::Even(from), odd = Tile::Odd(from);
      const auto change = [&](size_t column, UintVec top) HWY_ATTR {
        if constexpr (kColumns) return Signed(hn::Mul(row, hn::Set(d, col[column])), top);
        return PlusOrMinus(row, minus_row, top);
      };
      odd = hn::Add(odd, change(2 * pair + 1, bits));
      bits = hn::Add(bits, bits);
      even = hn::Add(even, change(2 * pair, bits));
      bits = hn::Add(bits, bits);
      hn::StoreU(even, d, to + 2 * pair * kTileRows + v * kLanes);
      hn::StoreU(odd, d, to + (2 * pair + 1) * kTileRows + v * kLanes);
    }
  }
}

// `weights`: the pair of the panel's first column, in the tile or (for a second plane) the panel itself.
template <class Tile, bool kColumns>
inline void Fold(const PanelArgs& args, const uint8_t* weights, SignLines signs) {
  float* to = args.panel;
  for (size_t k = 0; k < args.n; k += 8) {
    const size_t n_pairs = std::min<size_t>(4, (args.n - k) / 2);
    float col[8] = {};
    if constexpr (kColumns) {
      for (size_t i = 0; i < std::min<size_t>(8, args.n_real - k); ++i) col[i] = signs.col_scale[k + i];
    }
    if (n_pairs == 4) {
      FoldOctet<Tile, kColumns>(weights, signs, 4, col, to);
    } else {
      FoldOctet<Tile, kColumns>(weights, signs, n_pairs, col, to);
    }
    weights += 4 * Tile::kPairBytes;
    signs.line += kTileRows;
    to += 8 * kTileRows;
  }
}

template <class Tile>
inline void Fold(const PanelArgs& args, const uint8_t* weights, const SignLines& signs) {
  signs.col_scale != nullptr ? Fold<Tile, true>(args, weights, signs) : Fold<Tile, false>(args, weights, signs);
}

template <class Tile>
inline void UnpackTile(const PanelArgs& args, const PackedDelta* signs) {
  if (args.weight == nullptr) {
    std::fill_n(args.panel, args.n * kTileRows, 0.0F);
  } else if (signs == nullptr) {
    UnpackPlain<Tile>(args, WeightsOf(args));
  } else {
    Fold<Tile>(args, WeightsOf(args), LinesOf(signs->planes[0], args));
  }
  if (signs == nullptr) return;
  for (size_t p = args.weight == nullptr ? 0 : 1; p < signs->planes.size(); ++p) {
    Fold<F32Tile>(args, reinterpret_cast<const uint8_t*>(args.panel), LinesOf(signs->planes[p], args));
  }
}

inline void UnpackPanel(const PanelArgs& args, const PackedDelta* signs) {
  switch (args.dtype) {
    case DType::kBf16: return UnpackTile<Bf16Tile>(args, signs);
    case DType::kF16: return UnpackTile<F16Tile>(args, signs);
    default: return UnpackTile<F32Tile>(args, signs);
  }
}

// Prefill in f32. bf16_panel-inl.h has the other kind.
struct F32Panels {
  static constexpr size_t kColumns = kPanelColumns;

  // The operand of Multiply.
  static const uint8_t* Make(const PanelArgs& args, const PackedDelta* signs) {
    UnpackPanel(args, signs);
    return reinterpret_cast<const uint8_t*>(args.panel);
  }

  // sums [group size][32] += n columns from column k on.
  static void Multiply(const uint8_t* weights, const RowGroup& group, size_t k, size_t n, float* sums) {
    kPanelProducts[group.size - 1](
        {.weights = weights, .n_pairs = n / 2, .x = group.x + k * group.size, .sums = sums, .stride = kTileRows});
  }
};

// Part `part` of `n_parts` of what UnpackPanel will read, on its way into the second-level cache while rows are
// multiplied by the panel before: unpacking alone would wait for memory.
inline void PrefetchPanel(const PanelArgs& args, const PackedDelta* signs, size_t part, size_t n_parts) {
  const auto lines = [&](const uint8_t* from, size_t n_bytes) {
    const size_t n_lines = (n_bytes + 63) / 64;
    for (size_t i = n_lines * part / n_parts; i < n_lines * (part + 1) / n_parts; ++i) {
      __builtin_prefetch(from + i * 64, 0, 2);
    }
  };
  const size_t element_bytes = DTypeBytes(args.dtype);
  if (args.weight != nullptr && args.weight->IsMapped()) {
    const size_t row_bytes = args.weight->d_in * element_bytes;
    const uint8_t* from = args.weight->mapped.data() + args.tile * kTileRows * row_bytes + args.first * element_bytes;
    for (size_t i = kTileRows * part / n_parts; i < kTileRows * (part + 1) / n_parts; ++i) {
      for (size_t byte = 0; byte < args.n * element_bytes; byte += 64)
        __builtin_prefetch(from + i * row_bytes + byte, 0, 2);
    }
  } else if (args.weight != nullptr) {
    const PackedWeight& weight = *args.weight;
    const size_t column_bytes = kTileRows * element_bytes;
    lines(weight.tiles.data() + args.tile * weight.tile_bytes() + args.first * column_bytes, args.n * column_bytes);
  }
  if (signs == nullptr) return;
  for (const PackedPlane& plane : signs->planes) lines(LinesOf(plane, args).line, (args.n + 7) / 8 * kTileRows);
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAFOLD_KERNELS_CPU_PANEL_INL_H_
