// The sign product by byte shuffles: for every 4 columns the 16 signed sums of their x are rounded to integers of one
// scale a block, biased to be positive, and cut into digits of 7 bits: 16 bytes a digit, which a shuffle looks up for
// 16 or more outputs at once.
//
//   bits of 8 columns     a byte an output: low four bits index the first quad's table, high four the second's
//   digit                 T0[low] + T1[high] <= 254, a byte an output
//   sums over the block   as u16 of neighbouring outputs: `all` takes the bytes as they lie, `odd` the high bytes
//   alone;
//                         even = all - 256 odd, exact modulo 2^16 because 64 octets x 254 < 2^16
//
// The sums are exact integers, so the only error is the rounding of the tables:
//
//   2 digits (14 bits)    |error| <= n/4 * 0.5 * q a block of n columns, q = the largest sum of a quad / 2^13; the
//   speed
//                         mode. An x beyond 16 times the block's rms would spoil q: it is left out and added exactly.
//   4 digits (28 bits)    q = .. / 2^27: below the rounding of f32 sums whatever x is; the exact mode below 16 lanes.
//   It
//                         costs twice the speed mode and 0.6 of f32 permutes on 8 lanes (a Zen 3 has one such permute a
//                         cycle, but two byte shuffles).
#if defined(DELTAFOLD_KERNELS_CPU_SIGN_LOOKUP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAFOLD_KERNELS_CPU_SIGN_LOOKUP_INL_H_
#undef DELTAFOLD_KERNELS_CPU_SIGN_LOOKUP_INL_H_
#else
#define DELTAFOLD_KERNELS_CPU_SIGN_LOOKUP_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cpu/sign_tables-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

// Bytes of a whole vector.
inline constexpr size_t kFullBytes = 4 * kLanes;

// At the start of a block's tables.
struct alignas(64) LookupBlock {
  float scale = 0;
  float outlier = 0;  // its x, 0 = none
  uint32_t outlier_column = 0;
};

// kParts pairs of digits: 1 or 2. Vectors of kVectorBytes, as many outputs of bits.
template <size_t kParts, size_t kVectorBytes = kFullBytes>
struct LookupSigns {
  using ByteTag = hn::CappedTag<uint8_t, kVectorBytes>;
  using ByteVec = hn::Vec<ByteTag>;
  using WordTag = hn::CappedTag<uint16_t, kVectorBytes / 2>;
  using WordVec = hn::Vec<WordTag>;
  using SumTag = hn::CappedTag<uint32_t, kVectorBytes / 4>;
  using SumVec = hn::Vec<SumTag>;
  using ProductTag = hn::CappedTag<float, kVectorBytes / 4>;
  using ProductVec = hn::Vec<ProductTag>;

  static constexpr size_t kPartBytes = 4 * 16;  // [digit][quad][16]
  static constexpr size_t kOctetBytes = kParts * kPartBytes;
  static constexpr size_t kBlockBytes = sizeof(LookupBlock);
  static constexpr int kTotalBits = 14 * kParts;
  static constexpr size_t kVectors = std::max<size_t>(1, kUnitRows / kVectorBytes);
  // Vectors that share the tables' loads: two take 8 sums, 4 tables and 4 more, all of 16 registers.
  static constexpr size_t kShared = std::min<size_t>(2, kVectors);
  static_assert(kUnitRows % kVectorBytes == 0);

  struct State {
    HWY_ALIGN uint16_t sums[kParts][kVectors][4][kVectorBytes / 2] = {};  // digit by digit: all, odd
  };

  static void Build(const float* x, size_t n, uint8_t* table) {
    HWY_ALIGN float values[kSignBlockColumns] = {};
    std::copy_n(x, n, values);
    LookupBlock block;
    if (kParts == 1) TakeOutlier(values, n, block);
    const float largest = LargestQuad(values);
    const size_t n_octets = (n + kOctet - 1) / kOctet;
    // 64 of 2^27 leave room for the rounding of `largest`, the product and the sums themselves.
    constexpr float kLargest = static_cast<float>((1 << (kTotalBits - 1)) - (kParts == 1 ? 1 : 64));
    block.scale = largest / kLargest;
    const float to_steps = block.scale > 0 ? kLargest / largest : 0.0F;
    std::memcpy(table, &block, sizeof(block));
    table += kBlockBytes;
    for (size_t quad = 0; quad < 2 * n_octets; ++quad) {
      BuildQuad(values + 4 * quad, to_steps, table + quad / 2 * kOctetBytes + quad % 2 * 16);
    }
  }

  template <BitsLevel kLevel>
  static void Add(const SignArgs& args, State& state) {
    DF_UNROLL
    for (size_t v = 0; v < kVectors; v += kShared) {
      AddPart<true, kLevel>(args, v, args.tables, state.sums[0] + v);
      if constexpr (kParts == 2) AddPart<false, kLevel>(args, v, args.tables + kPartBytes, state.sums[1] + v);
    }
  }

  static void Finish(const SignArgs& args, State& state, float* product) {
    LookupBlock block;
    std::memcpy(&block, args.block, sizeof(block));
    for (size_t v = 0; v < kVectors; ++v) FinishVector(args, block, state, v, product + v * kVectorBytes);
    state = {};
  }

 private:
  using Sums = WordVec[kShared][4];  // of two digits: all, odd, all, odd

  // The largest sum that a quad's table holds.
  static HWY_INLINE float LargestQuad(const float (&values)[kSignBlockColumns]) {
    const FloatTag d;
    FloatVec largest = hn::Zero(d);
    for (size_t k = 0; k < kSignBlockColumns; k += 4 * kLanes) {
      FloatVec x0, x1, x2, x3;
      hn::LoadInterleaved4(d, values + k, x0, x1, x2, x3);
      const FloatVec sum = hn::Add(hn::Add(hn::Abs(x0), hn::Abs(x1)), hn::Add(hn::Abs(x2), hn::Abs(x3)));
      largest = hn::Max(largest, sum);
    }
    return hn::GetLane(hn::MaxOfLanes(d, largest));
  }

  // x [kSignBlockColumns], of which n count and the rest is zero.
  static HWY_INLINE void TakeOutlier(float* x, size_t n, LookupBlock& block) {
    constexpr float kTimesRms = 16;
    const FloatTag d;
    FloatVec squares = hn::Zero(d), top = hn::Zero(d);
    for (size_t k = 0; k < kSignBlockColumns; k += kLanes) {
      const FloatVec v = hn::Load(d, x + k);
      squares = hn::MulAdd(v, v, squares);
      top = hn::Max(top, hn::Abs(v));
    }
    const float sum = hn::GetLane(hn::SumOfLanes(d, squares)), largest = hn::GetLane(hn::MaxOfLanes(d, top));
    // Also where the squares overflow: then the largest is about all there is.
    if (largest * largest * static_cast<float>(n) <= kTimesRms * kTimesRms * sum && sum < HUGE_VALF) return;
    const float* at = std::find_if(x, x + n, [&](float value) { return std::abs(value) == largest; });
    if (at == x + n) return;  // no number at all
    block.outlier = *at;
    block.outlier_column = static_cast<uint32_t>(at - x);
    x[block.outlier_column] = 0;
  }

  // All digits of one quad: 16 bytes each, kPartBytes / 2 apart.
  static HWY_INLINE void BuildQuad(const float* x, float to_steps, uint8_t* table) {
    const FloatTag d;
    const UintTag du;
    const hn::Rebind<uint8_t, UintTag> d8;
    for (size_t first = 0; first < 16; first += kLanes) {
      const FloatVec sums = QuadSums(x, static_cast<uint32_t>(first));
      const auto steps = hn::NearestInt(hn::Mul(sums, hn::Set(d, to_steps)));
      const UintVec biased = hn::Add(hn::BitCast(du, steps), hn::Set(du, 1u << (kTotalBits - 1)));
      DF_UNROLL
      for (size_t digit = 0; digit < 2 * kParts; ++digit) {
        const UintVec value = hn::And(hn::ShiftRightSame(biased, static_cast<int>(7 * digit)), hn::Set(du, 127));
        hn::StoreU(hn::TruncateTo(d8, value), d8, table + digit * kPartBytes / 2 + first);
      }
    }
  }

  static HWY_INLINE ByteVec LoadBits(const SignArgs& args, size_t octet, size_t vector) {
    const ByteTag d8;
    const uint8_t* line = args.bits + octet * kTileRows;
    if constexpr (kVectorBytes > kTileRows) {
      const hn::Half<ByteTag> half;
      return hn::Combine(d8, hn::LoadU(half, line + args.next_tile), hn::LoadU(half, line));
    } else {
      const size_t output = vector * kVectorBytes;
      return hn::LoadU(d8, line + (output < kTileRows ? 0 : args.next_tile) + output % kTileRows);
    }
  }

  static HWY_INLINE void LoadPart(const uint16_t (*memory)[4][kVectorBytes / 2], Sums& sums) {
    DF_UNROLL
    for (size_t v = 0; v < kShared; ++v) {
      DF_UNROLL
      for (size_t i = 0; i < 4; ++i) sums[v][i] = hn::Load(WordTag(), memory[v][i]);
    }
  }
  static HWY_INLINE void StorePart(const Sums& sums, uint16_t (*memory)[4][kVectorBytes / 2]) {
    DF_UNROLL
    for (size_t v = 0; v < kShared; ++v) {
      DF_UNROLL
      for (size_t i = 0; i < 4; ++i) hn::Store(sums[v][i], WordTag(), memory[v][i]);
    }
  }

  // One octet of vectors [first, first + kShared), two digits.
  static HWY_INLINE void AddOctetPart(const SignArgs& args, size_t octet, size_t first, const uint8_t* table,
                                      Sums& sums) {
    const ByteTag d8;
    const WordTag d16;
    const ByteVec low_four = hn::Set(d8, 15);
    ByteVec low[kShared], high[kShared];
    DF_UNROLL
    for (size_t v = 0; v < kShared; ++v) {
      const ByteVec bits = LoadBits(args, octet, first + v);
      low[v] = hn::And(bits, low_four);
      high[v] = hn::And(hn::BitCast(d8, hn::ShiftRight<4>(hn::BitCast(d16, bits))), low_four);
    }
    DF_UNROLL
    for (size_t digit = 0; digit < 2; ++digit) {
      const ByteVec quad0 = hn::LoadDup128(d8, table + digit * 32);
      const ByteVec quad1 = hn::LoadDup128(d8, table + digit * 32 + 16);
      DF_UNROLL
      for (size_t v = 0; v < kShared; ++v) {
        const WordVec sum =
            hn::BitCast(d16, hn::Add(hn::TableLookupBytes(quad0, low[v]), hn::TableLookupBytes(quad1, high[v])));
        sums[v][2 * digit] = hn::Add(sums[v][2 * digit], sum);
        sums[v][2 * digit + 1] = hn::Add(sums[v][2 * digit + 1], hn::ShiftRight<8>(sum));
      }
    }
  }

  // All octets, two digits.
  template <bool kPrefetch, BitsLevel kLevel>
  static HWY_INLINE void AddPart(const SignArgs& args, size_t first, const uint8_t* table,
                                 uint16_t (*memory)[4][kVectorBytes / 2]) {
    Sums sums;
    LoadPart(memory, sums);
    for (size_t octet = 0; octet < args.n_octets; ++octet, table += kOctetBytes) {
      if (kPrefetch) PrefetchNext<kLevel>(args, octet);
      if (kLanes >= 16) __builtin_prefetch(table + kTablesAheadBytes, 0, 3);
      AddOctetPart(args, octet, first, table, sums);
    }
    StorePart(sums, memory);
  }

  // Sums of two digits for outputs 4l + p of lane l, less the bias.
  static HWY_INLINE void Combine(const uint16_t (&sums)[4][kVectorBytes / 2], uint32_t bias, ProductVec (&out)[4]) {
    const WordTag d16;
    const SumTag du;
    const ProductTag d;
    SumVec digits[2][4];
    DF_UNROLL
    for (size_t digit = 0; digit < 2; ++digit) {
      const WordVec all = hn::Load(d16, sums[2 * digit]), odd = hn::Load(d16, sums[2 * digit + 1]);
      const SumVec even = hn::BitCast(du, hn::Sub(all, hn::ShiftLeft<8>(odd)));
      const SumVec odd_pairs = hn::BitCast(du, odd);
      const SumVec low_half = hn::Set(du, 0xFFFF);
      digits[digit][0] = hn::And(even, low_half);
      digits[digit][1] = hn::And(odd_pairs, low_half);
      digits[digit][2] = hn::ShiftRight<16>(even);
      digits[digit][3] = hn::ShiftRight<16>(odd_pairs);
    }
    DF_UNROLL
    for (size_t p = 0; p < 4; ++p) {
      const SumVec value = hn::Sub(hn::Add(digits[0][p], hn::ShiftLeft<7>(digits[1][p])), hn::Set(du, bias));
      out[p] = hn::ConvertTo(d, hn::BitCast(hn::RebindToSigned<SumTag>(), value));
    }
  }

  static HWY_INLINE void FinishVector(const SignArgs& args, const LookupBlock& block, const State& state, size_t v,
                                      float* product) {
    const ProductTag d;
    ProductVec total[4];
    hn::LoadInterleaved4(d, product, total[0], total[1], total[2], total[3]);
    DF_UNROLL
    for (size_t part = 0; part < kParts; ++part) {
      // The bias is the highest digit's alone: 2^13 of the last 14 bits a quad.
      const auto bias = static_cast<uint32_t>(part + 1 == kParts ? 2 * args.n_octets << 13 : 0);
      const ProductVec scale = hn::Set(d, part == 0 ? block.scale : block.scale * 16384.0F);
      ProductVec sums[4];
      Combine(state.sums[part][v], bias, sums);
      DF_UNROLL
      for (size_t p = 0; p < 4; ++p) total[p] = hn::MulAdd(sums[p], scale, total[p]);
    }
    if (kParts == 1 && block.outlier != 0) AddOutlier(args, block, v, total);
    hn::StoreInterleaved4(total[0], total[1], total[2], total[3], d, product);
  }

  static HWY_INLINE void AddOutlier(const SignArgs& args, const LookupBlock& block, size_t v, ProductVec (&total)[4]) {
    const ProductTag d;
    const SumTag du;
    const SumVec bits = hn::BitCast(du, LoadBits(args, block.outlier_column / kOctet, v));
    DF_UNROLL
    for (size_t p = 0; p < 4; ++p) {
      const int to_top = static_cast<int>(31 - 8 * p - block.outlier_column % kOctet);
      const SumVec minus = hn::AndNot(hn::ShiftLeftSame(bits, to_top), hn::Set(du, 0x80000000u));
      total[p] = hn::Add(total[p], hn::Xor(hn::Set(d, block.outlier), hn::BitCast(d, minus)));
    }
  }
};

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAFOLD_KERNELS_CPU_SIGN_LOOKUP_INL_H_
