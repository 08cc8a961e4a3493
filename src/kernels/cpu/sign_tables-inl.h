// What both sign products share: their arguments, and signed sums of a few activations, one for every pattern of signs.
//
// A sign product works on a row of activations and the outputs of one unit, two R32 tiles:
//
//   product[r] = sum_k s[r][k] x[k]       r in [0, 64)
//
// in blocks of 512 columns. A kernel K (sign_permute-inl.h, sign_lookup-inl.h) has
//
//   K::kOctetBytes, K::kBlockBytes   table bytes of 8 columns; of a block beside those
//   K::State                         sums of one block so far, in memory between two calls
//   K::Build(x, n, table)            tables of a block from x [n], n <= 512
//   K::Add(args, state)              some octets of the block; the sums do not depend on where a call ends
//   K::Finish(args, state, product)  product += the block's sums, which start anew; args as of the whole block
//
// so that signs of a few octets can be added between two blocks of the base product (linear.cc says why).
#if defined(DELTAFOLD_KERNELS_CPU_SIGN_TABLES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAFOLD_KERNELS_CPU_SIGN_TABLES_INL_H_
#undef DELTAFOLD_KERNELS_CPU_SIGN_TABLES_INL_H_
#else
#define DELTAFOLD_KERNELS_CPU_SIGN_TABLES_INL_H_
#endif

#include "kernels/cpu/block_product-inl.h"
#include "kernels/packed.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

inline constexpr size_t kOctet = 8;             // columns of one R32 line
inline constexpr size_t kSignBlockOctets = 64;  // 512 columns: sums start anew, tables have one scale
inline constexpr size_t kSignBlockColumns = kSignBlockOctets * kOctet;
inline constexpr size_t kUnitTiles = 2;
inline constexpr size_t kUnitRows = kUnitTiles * kTileRows;

// Tables of 4096 columns fill the first level, and the second one gives them late: with 16 lanes each octet asks for
// those of 256 bytes on. One variant by 14 bits took 1.17 of the base instead of 1.25, 4 of 4 rows 1.52 of the bound
// instead of 1.57 (Zen 4).
inline constexpr size_t kTablesAheadBytes = 256;

// Whether signs fetch weights, a line an octet: about their share of the time with 8 lanes, where memory is asked for
// without a pause. With 16 the few buffers for lines under way are needed for their own bits and tables.
inline constexpr bool kSignsFetchWeights = kLanes < 16;

struct SignArgs {
  const uint8_t* bits = nullptr;  // R32 line of the first tile
  size_t next_tile = 0;           // bytes to the same line of the second tile; 0 = there is none, its sums are void
  size_t n_octets = 0;
  const uint8_t* tables = nullptr;         // of the first octet
  const uint8_t* block = nullptr;          // the block's tables from their start (Finish)
  const uint8_t* ahead = nullptr;          // bits that will be wanted next, in both tiles
  const uint8_t* weights_ahead = nullptr;  // base weights to fetch meanwhile, a line an octet
};

// Table bytes of a whole block.
template <class Signs>
inline constexpr size_t kSignTableBytes = Signs::kBlockBytes + kSignBlockOctets * Signs::kOctetBytes;

// Where bits are fetched to: woven into the base (decode-inl.h) the first level, in turns with it the second.
enum class BitsLevel : uint8_t { kFirst, kSecond };

// Fetches what is wanted next: of the bits a line every octet (two lines hold two octets of both tiles), of the weights
// perhaps one as well.
template <BitsLevel kLevel>
HWY_INLINE void PrefetchNext(const SignArgs& args, size_t octet) {
  const size_t line = (octet - octet % 2) * kTileRows + (octet % 2 != 0 ? args.next_tile : 0);
  __builtin_prefetch(args.ahead + line, 0, kLevel == BitsLevel::kFirst ? 3 : 2);
  if constexpr (kSignsFetchWeights && kLevel == BitsLevel::kFirst) {
    __builtin_prefetch(args.weights_ahead + octet * 64, 0, kPrefetchAheadLevel);
  }
}

// Where bit `bit` of a lane's number is set: +x, else -x. The lanes are numbered from `first_lane` on.
HWY_INLINE FloatVec SignedByLane(FloatVec x, uint32_t first_lane, uint32_t bit) {
  const UintTag du;
  const UintVec is_set = hn::And(hn::ShiftRightSame(hn::Iota(du, first_lane), static_cast<int>(bit)), hn::Set(du, 1));
  const UintVec flip = hn::ShiftLeft<31>(hn::Xor(is_set, hn::Set(du, 1)));
  return hn::Xor(x, hn::BitCast(FloatTag(), flip));
}

// Signed sums of x [4] for the patterns [first_lane, first_lane + kLanes) of 16.
HWY_INLINE FloatVec QuadSums(const float* x, uint32_t first_lane) {
  const FloatTag d;
  FloatVec sum = SignedByLane(hn::Set(d, x[0]), first_lane, 0);
  for (uint32_t i = 1; i < 4; ++i) sum = hn::Add(sum, SignedByLane(hn::Set(d, x[i]), first_lane, i));
  return sum;
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAFOLD_KERNELS_CPU_SIGN_TABLES_INL_H_
