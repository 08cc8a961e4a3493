// The sign product by permutes of f32 tables, on 16 lanes: for every 4 columns the 16 signed sums of their x fill one
// register, and 4 sign bits of an output select its sum. A permute looks at the low 4 bits of its index: no mask is
// needed.
//
//   bits of both tiles, 8 columns    64 bytes; as 32-bit lanes, lane l holds outputs 4l .. 4l+3, a byte each
//   for byte p of the lane           sum[p] += T0[bits >> 8p], sum[p] += T1[bits >> 8p + 4]
//
// 24 instructions for 512 weights. Two chains an output: one would wait for its own additions.
#if defined(DELTAFOLD_KERNELS_CPU_SIGN_PERMUTE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAFOLD_KERNELS_CPU_SIGN_PERMUTE_INL_H_
#undef DELTAFOLD_KERNELS_CPU_SIGN_PERMUTE_INL_H_
#else
#define DELTAFOLD_KERNELS_CPU_SIGN_PERMUTE_INL_H_
#endif

#include <algorithm>

#include "kernels/cpu/sign_tables-inl.h"

#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

struct PermuteSigns {
  static constexpr size_t kOctetBytes = 2 * 16 * sizeof(float);
  static constexpr size_t kBlockBytes = 0;

  struct State {
    HWY_ALIGN float sums[8][16] = {};  // of byte p: [2p] by the low four columns, [2p + 1] by the high four
  };

  static void Build(const float* x, size_t n, uint8_t* table) {
    auto* to = reinterpret_cast<float*>(table);
    for (size_t k = 0; k < n; k += kOctet, to += 32) {
      float part[kOctet] = {};
      std::copy_n(x + k, std::min(kOctet, n - k), part);
      hn::StoreU(QuadSums(part, 0), FloatTag(), to);
      hn::StoreU(QuadSums(part + 4, 0), FloatTag(), to + 16);
    }
  }

  template <int kPart>
  static HWY_INLINE void AddByte(UintVec bits, FloatVec low, FloatVec high, FloatVec (&sums)[8]) {
    constexpr int kShift = 8 * kPart;
    const UintVec low_index = hn::ShiftRight<kShift>(bits);
    const UintVec high_index = hn::ShiftRight<kShift + 4>(bits);
    sums[2 * kPart] = hn::Add(sums[2 * kPart], FloatVec{_mm512_permutexvar_ps(low_index.raw, low.raw)});
    sums[2 * kPart + 1] = hn::Add(sums[2 * kPart + 1], FloatVec{_mm512_permutexvar_ps(high_index.raw, high.raw)});
  }

  using Sums = FloatVec[8];

  static HWY_INLINE void LoadSums(const State& state, Sums& sums) {
    DF_UNROLL
    for (size_t i = 0; i < 8; ++i) sums[i] = hn::Load(FloatTag(), state.sums[i]);
  }
  static HWY_INLINE void StoreSums(const Sums& sums, State& state) {
    DF_UNROLL
    for (size_t i = 0; i < 8; ++i) hn::Store(sums[i], FloatTag(), state.sums[i]);
  }

  static HWY_INLINE void AddOctet(const SignArgs& args, size_t octet, Sums& sums) {
    const FloatTag d;
    const UintTag du;
    const hn::Half<UintTag> half;
    const uint8_t* line = args.bits + octet * kTileRows;
    const auto* table = reinterpret_cast<const float*>(args.tables) + octet * 32;
    const auto lower = hn::LoadU(half, reinterpret_cast<const uint32_t*>(line));
    const UintVec bits =
        hn::Combine(du, hn::LoadU(half, reinterpret_cast<const uint32_t*>(line + args.next_tile)), lower);
    const FloatVec low = hn::LoadU(d, table), high = hn::LoadU(d, table + 16);
    AddByte<0>(bits, low, high, sums);
    AddByte<1>(bits, low, high, sums);
    AddByte<2>(bits, low, high, sums);
    AddByte<3>(bits, low, high, sums);
  }

  template <BitsLevel kLevel>
  static void Add(const SignArgs& args, State& state) {
    Sums sums;
    LoadSums(state, sums);
    for (size_t octet = 0; octet < args.n_octets; ++octet) {
      PrefetchNext<kLevel>(args, octet);
      AddOctet(args, octet, sums);
    }
    StoreSums(sums, state);
  }

  static void Finish(const SignArgs&, State& state, float* product) {
    const FloatTag d;
    FloatVec total[4];
    hn::LoadInterleaved4(d, product, total[0], total[1], total[2], total[3]);
    DF_UNROLL
    for (size_t p = 0; p < 4; ++p) {
      const FloatVec sum = hn::Add(hn::Load(d, state.sums[2 * p]), hn::Load(d, state.sums[2 * p + 1]));
      total[p] = hn::Add(total[p], sum);
    }
    hn::StoreInterleaved4(total[0], total[1], total[2], total[3], d, product);
    state = {};
  }
};

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // 16 lanes

#endif  // DELTAFOLD_KERNELS_CPU_SIGN_PERMUTE_INL_H_
