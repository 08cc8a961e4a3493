// The exact product of a sign plane with one row of activations, by table: the signed sums of a few consecutive x are
// built once a row, and the sign bits of an output select one of them by a register permute.
//
//   16 lanes: 8 columns = 2 tables of 2^4 sums; a permute looks at the low 4 bits of its index, so no mask is needed
//    8 lanes: 8 columns = 3 + 3 + 2, 3 tables of 2^3 sums (the last one repeated for either value of its third bit)
//    4 lanes: no such permute: x itself, its sign flipped by the bit
//
// A vector of R32 bytes seen as 32-bit lanes holds outputs 4l .. 4l+3 in lane l; accumulator p collects output 4l + p.
// Per 32 outputs x 8 columns: 32 bytes of bits and 8 table permutes (16 lanes, two tiles at once), 12 (8 lanes).
#if defined(DELTAFOLD_KERNELS_CPU_SIGN_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAFOLD_KERNELS_CPU_SIGN_PRODUCT_INL_H_
#undef DELTAFOLD_KERNELS_CPU_SIGN_PRODUCT_INL_H_
#else
#define DELTAFOLD_KERNELS_CPU_SIGN_PRODUCT_INL_H_
#endif

#include <algorithm>

#include "kernels/cpu/simd-inl.h"
#include "kernels/packed.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

inline constexpr size_t kOctet = 8;                                               // columns of one R32 line
inline constexpr size_t kTableFloats = kLanes >= 16 ? 32 : kLanes >= 8 ? 24 : 8;  // of an octet
// Sums start anew every 64 octets = 512 columns, as in block_product-inl.h.
inline constexpr size_t kBlockOctets = 64;

// Where bit `bit` of the lane's number is set: +x, else -x.
HWY_INLINE FloatVec SignedByLane(FloatVec x, uint32_t bit) {
  const UintTag du;
  const UintVec is_set = hn::And(hn::ShiftRightSame(hn::Iota(du, 0), static_cast<int>(bit)), hn::Set(du, 1));
  const UintVec flip = hn::ShiftLeft<31>(hn::Xor(is_set, hn::Set(du, 1)));
  return hn::Xor(x, hn::BitCast(FloatTag(), flip));
}

// Tables of one octet from x [8].
HWY_INLINE void BuildOctet(const float* x, float* table) {
  const FloatTag d;
  const auto sum = [&](size_t first, uint32_t n) HWY_ATTR {
    FloatVec s = SignedByLane(hn::Set(d, x[first]), 0);
    for (uint32_t i = 1; i < n; ++i) s = hn::Add(s, SignedByLane(hn::Set(d, x[first + i]), i));
    return s;
  };
  if constexpr (kLanes >= 16) {
    hn::StoreU(sum(0, 4), d, table);
    hn::StoreU(sum(4, 4), d, table + 16);
  } else if constexpr (kLanes >= 8) {
    hn::StoreU(sum(0, 3), d, table);
    hn::StoreU(sum(3, 3), d, table + 8);
    hn::StoreU(sum(6, 2), d, table + 16);
  } else {
    for (size_t i = 0; i < kOctet; ++i) table[i] = -x[i];
  }
}

// Octets [begin, end) of one row's tables; columns from d_in on count as zero.
inline void BuildTables(const float* x, const float* col_scale, size_t d_in, size_t begin, size_t end, float* tables) {
  for (size_t octet = begin; octet < end; ++octet) {
    float part[kOctet] = {};
    const size_t first = octet * kOctet;
    const size_t n = std::min(kOctet, d_in - first);
    for (size_t i = 0; i < n; ++i) part[i] = col_scale != nullptr ? x[first + i] * col_scale[first + i] : x[first + i];
    BuildOctet(part, tables + octet * kTableFloats);
  }
}

// sums[r] = sum_k s[r][k] x[k], r in [0, 64): of the tile at `bits` and of the one behind it.
struct SignArgs {
  const uint8_t* bits = nullptr;  // R32 tile, [n_octets][32]
  bool two_tiles = false;         // else sums [32, 64) are not written or hold nothing of use
  size_t n_octets = 0;
  const float* tables = nullptr;
};

#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86

HWY_INLINE FloatVec Permute(const float* table, UintVec index) {
#if HWY_TARGET <= HWY_AVX3
  return FloatVec{_mm512_permutexvar_ps(index.raw, _mm512_loadu_ps(table))};
#else
  return FloatVec{_mm256_permutevar8x32_ps(_mm256_loadu_ps(table), index.raw)};
#endif
}

// The tables' sums for output 4l + kPart of each lane, by the byte kPart of its index.
template <int kPart>
HWY_INLINE void AddByte(UintVec bits, const float* tables, FloatVec& a, FloatVec& b) {
  constexpr int kShift = 8 * kPart;
  if constexpr (kLanes >= 16) {
    a = hn::Add(a, Permute(tables, hn::ShiftRight<kShift>(bits)));
    b = hn::Add(b, Permute(tables + 16, hn::ShiftRight<kShift + 4>(bits)));
  } else {
    a = hn::Add(a, Permute(tables, hn::ShiftRight<kShift>(bits)));
    b = hn::Add(b, Permute(tables + 8, hn::ShiftRight<kShift + 3>(bits)));
    a = hn::Add(a, Permute(tables + 16, hn::ShiftRight<kShift + 6>(bits)));
  }
}

HWY_INLINE UintVec LoadBits(const SignArgs& args, const uint8_t* line) {
  const UintTag du;
#if HWY_TARGET <= HWY_AVX3
  const hn::Half<UintTag> half;
  const auto lower = hn::LoadU(half, reinterpret_cast<const uint32_t*>(line));
  const auto* next = reinterpret_cast<const uint32_t*>(line + (args.two_tiles ? args.n_octets * kTileRows : 0));
  return hn::Combine(du, hn::LoadU(half, next), lower);
#else
  (void)args;
  return hn::LoadU(du, reinterpret_cast<const uint32_t*>(line));
#endif
}

// Outputs of one vector of bit bytes: two tiles on 16 lanes, one on 8.
HWY_INLINE void VectorSigns(const SignArgs& args, const uint8_t* bits, float* sums) {
  const FloatTag d;
  FloatVec t0 = hn::Zero(d), t1 = t0, t2 = t0, t3 = t0;
  for (size_t first = 0; first < args.n_octets; first += kBlockOctets) {
    const size_t end = std::min(first + kBlockOctets, args.n_octets);
    // Two chains an output: one would wait for its own additions.
    FloatVec a0 = hn::Zero(d), a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0;
    for (size_t octet = first; octet < end; ++octet) {
      const UintVec v = LoadBits(args, bits + octet * kTileRows);
      const float* tables = args.tables + octet * kTableFloats;
      AddByte<0>(v, tables, a0, b0);
      AddByte<1>(v, tables, a1, b1);
      AddByte<2>(v, tables, a2, b2);
      AddByte<3>(v, tables, a3, b3);
    }
    t0 = hn::Add(t0, hn::Add(a0, b0));
    t1 = hn::Add(t1, hn::Add(a1, b1));
    t2 = hn::Add(t2, hn::Add(a2, b2));
    t3 = hn::Add(t3, hn::Add(a3, b3));
  }
  hn::StoreInterleaved4(t0, t1, t2, t3, d, sums);
}

inline void SignProduct(const SignArgs& args, float* sums) {
  VectorSigns(args, args.bits, sums);
  if (kLanes < 16 && args.two_tiles) VectorSigns(args, args.bits + args.n_octets * kTileRows, sums + kTileRows);
}

#else  // 4 lanes

// Outputs 16q .. 16q + 15 of a tile: bits of one vector, highest first.
inline void VectorSigns(const SignArgs& args, const uint8_t* bits, float* sums) {
  const FloatTag d;
  const UintTag du;
  const UintVec sign_bit = hn::Set(du, 0x80000000u);
  FloatVec total[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  for (size_t first = 0; first < args.n_octets; first += kBlockOctets) {
    const size_t end = std::min(first + kBlockOctets, args.n_octets);
    FloatVec acc[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    for (size_t octet = first; octet < end; ++octet) {
      UintVec v = hn::LoadU(du, reinterpret_cast<const uint32_t*>(bits + octet * kTileRows));
      const float* minus_x = args.tables + octet * kTableFloats;
      DF_UNROLL
      for (size_t part = 4; part-- > 0;) {
        DF_UNROLL
        for (size_t i = kOctet; i-- > 0;) {
          const FloatVec flip = hn::BitCast(d, hn::And(v, sign_bit));
          acc[part] = hn::Add(acc[part], hn::Xor(hn::Set(d, minus_x[i]), flip));
          v = hn::Add(v, v);
        }
      }
    }
    for (size_t part = 0; part < 4; ++part) total[part] = hn::Add(total[part], acc[part]);
  }
  hn::StoreInterleaved4(total[0], total[1], total[2], total[3], d, sums);
}

inline void SignProduct(const SignArgs& args, float* sums) {
  const size_t n_vectors = (args.two_tiles ? 2 : 1) * kTileRows / (4 * kLanes);
  for (size_t i = 0; i < n_vectors; ++i) {
    const size_t output = i * 4 * kLanes;
    const uint8_t* tile = args.bits + output / kTileRows * args.n_octets * kTileRows;
    VectorSigns(args, tile + output % kTileRows, sums + output);
  }
}

#endif

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAFOLD_KERNELS_CPU_SIGN_PRODUCT_INL_H_
