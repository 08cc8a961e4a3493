#include <cstring>

#include "base/float16.h"
#include "kernels/cpu/attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/write_kv.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

// f32 to bf16, to nearest even, NaN kept: the bits of ToBf16.
void ToBf16Row(const float* HWY_RESTRICT from, size_t n, uint16_t* HWY_RESTRICT to) {
  const FloatTag d;
  const UintTag du;
  const hn::RebindToSigned<FloatTag> di;
  const hn::Rebind<uint16_t, FloatTag> d16;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const FloatVec x = hn::LoadU(d, from + i);
    const auto bits = hn::BitCast(du, x);
    const auto tie = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(tie, hn::Set(du, 0x7FFF))));
    const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40));
    const auto chosen = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), quiet, rounded);
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, chosen)), d16, to + i);
  }
  for (; i < n; ++i) to[i] = ToBf16(from[i]).bits;
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace df::kernels::cpu {
namespace {

HWY_EXPORT(ToBf16Row);

// Where the parts of one token's key and value lie, in elements of the pools.
struct TokenPlace {
  size_t key = 0;    // of the first pair of dimensions
  size_t value = 0;  // of all head_dim
};

TokenPlace PlaceOf(const KvLayerView& kv, size_t block, size_t head, size_t token) {
  const size_t first = (block * kv.n_kv_heads + head) * kKvBlockTokens * kv.head_dim;
  const size_t key_elements = kv.dtype == DType::kBf16 ? 2 : 1;
  return {.key = first + token * key_elements, .value = first + token * kv.head_dim};
}

void WriteTokenF32(const KvLayerView& kv, TokenPlace place, const float* k, const float* v) {
  float* keys = static_cast<float*>(kv.keys) + place.key;
  for (size_t dim = 0; dim < kv.head_dim; ++dim) keys[dim * kKvBlockTokens] = k[dim];
  std::memcpy(static_cast<float*>(kv.values) + place.value, v, kv.head_dim * sizeof(float));
}

// Pairs of the key go to words a cache line apart: in decode, the lines that Attention reads next.
void WriteTokenBf16(const KvLayerView& kv, TokenPlace place, const float* k, const float* v) {
  constexpr size_t kPiece = 128;
  uint16_t piece[kPiece];
  auto* keys = static_cast<uint16_t*>(kv.keys) + place.key;
  for (size_t dim = 0; dim < kv.head_dim; dim += kPiece) {
    const size_t n = std::min(kPiece, kv.head_dim - dim);
    HWY_DYNAMIC_DISPATCH(ToBf16Row)(k + dim, n, piece);
    for (size_t i = 0; i < n; i += 2) std::memcpy(keys + (dim + i) * kKvBlockTokens, piece + i, 2 * sizeof(*piece));
  }
  HWY_DYNAMIC_DISPATCH(ToBf16Row)(v, kv.head_dim, static_cast<uint16_t*>(kv.values) + place.value);
}

}  // namespace

void WriteKv(KernelContext& context, std::span<const SequenceSegment> segments, MatView<const float> k,
             MatView<const float> v, const KvLayerView& kv) {
  const auto write_token = kv.dtype == DType::kBf16 ? WriteTokenBf16 : WriteTokenF32;
  // A key's words lie a cache line apart: each counts for one.
  const size_t row_bytes = kv.n_kv_heads * kv.head_dim * (kAlignment / 2 + 2 * sizeof(float));
  context.pool.ParallelFor(k.rows, GrainFor(row_bytes), [&](size_t begin, size_t end, size_t /*thread*/) {
    for (const SequenceSegment& segment : segments) {
      for (size_t row = std::max(begin, segment.begin); row < std::min(end, segment.end); ++row) {
        const size_t position = segment.position + row - segment.begin;
        const auto block = static_cast<size_t>(segment.block_table[position / kKvBlockTokens]);
        for (size_t head = 0; head < kv.n_kv_heads; ++head) {
          write_token(kv, PlaceOf(kv, block, head, position % kKvBlockTokens), k.Row(row) + head * kv.head_dim,
                      v.Row(row) + head * kv.head_dim);
        }
      }
    }
  });
}

}  // namespace df::kernels::cpu
#endif  // HWY_ONCE
