// Stored elements to f32, exactly as base/float16.h, for the Highway files of this folder.
#if defined(DELTAFOLD_CODEC_CPU_LOAD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAFOLD_CODEC_CPU_LOAD_INL_H_
#undef DELTAFOLD_CODEC_CPU_LOAD_INL_H_
#else
#define DELTAFOLD_CODEC_CPU_LOAD_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "base/float16.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::row_ops::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using F32Vec = hn::Vec<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using I32 = hn::RebindToSigned<F32>;
using U16 = hn::Rebind<uint16_t, F32>;  // as many as f32 lanes
inline constexpr size_t kF32 = HWY_LANES(float);

// From wherever a mapped file has them: at any address.
template <typename D>
HWY_INLINE hn::Vec<D> LoadBytes(D d, const uint8_t* from) {
  return hn::BitCast(d, hn::LoadU(hn::Repartition<uint8_t, D>(), from));
}

template <typename T>
HWY_INLINE F32Vec LoadFloats(const uint8_t* from);
template <>
HWY_INLINE F32Vec LoadFloats<float>(const uint8_t* from) {
  return LoadBytes(F32(), from);
}
template <>
HWY_INLINE F32Vec LoadFloats<Bf16>(const uint8_t* from) {
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), LoadBytes(U16(), from))));
}
template <>
HWY_INLINE F32Vec LoadFloats<F16>(const uint8_t* from) {
  const auto bits = hn::PromoteTo(U32(), LoadBytes(U16(), from));
  const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(U32(), 0x7FFF)));
  const auto scaled = hn::Mul(hn::BitCast(F32(), magnitude), hn::Set(F32(), 0x1p112F));
  const auto is_special = hn::Gt(hn::BitCast(I32(), magnitude), hn::Set(I32(), 0x0F7FFFFF));
  const auto special = hn::And(hn::VecFromMask(I32(), is_special), hn::Set(I32(), 0x7F800000));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(U32(), 0x8000)));
  return hn::BitCast(F32(), hn::Or(hn::BitCast(U32(), scaled), hn::Or(hn::BitCast(U32(), special), sign)));
}

}  // namespace df::row_ops::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAFOLD_CODEC_CPU_LOAD_INL_H_
