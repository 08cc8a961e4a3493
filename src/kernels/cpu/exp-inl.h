// exp(x) for f32 vectors, shared by attention, activation and sample. Included once a vector target (see
// foreach_target).
//
// x = n ln2 + r, |r| <= ln2/2: exp(x) = 2^n (1 + r + r^2/2! + ... + r^7/7!). Truncation: r^8/8! <= 5.2e-9 relative,
// 0.09 ulp; r is exact to 2^-33 (ln2 in two parts, the upper with 9 trailing zero bits); the Horner steps add <= 1 ulp.
// Hence relative error <= 2 ulp where the result is normal. exp(-inf) = 0, exp(x) = 0 below -104, inf above 88.73, NaN
// stays NaN.
#if defined(DELTAFOLD_KERNELS_CPU_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAFOLD_KERNELS_CPU_EXP_INL_H_
#undef DELTAFOLD_KERNELS_CPU_EXP_INL_H_
#else
#define DELTAFOLD_KERNELS_CPU_EXP_INL_H_
#endif

#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

// 2^n for int32 lanes n in [-126, 127].
template <class D>
HWY_INLINE hn::Vec<D> PowerOfTwo(D d, hn::Vec<hn::RebindToSigned<D>> n) {
  const hn::RebindToSigned<D> di;
  return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n, hn::Set(di, 127))));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  const hn::RebindToSigned<D> di;
  // Outside [-105, 90] the result is 0 or inf. Min and Max may drop a NaN: it is put back at the end.
  const V bounded = hn::Min(hn::Max(x, hn::Set(d, -105.0F)), hn::Set(d, 90.0F));
  const V n = hn::Round(hn::Mul(bounded, hn::Set(d, 1.44269504088896341F)));  // 1/ln2
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375F), bounded);                  // ln2 rounded to 10 bits: n * it is exact
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4F), r);                       // ln2 minus that
  V sum = hn::Set(d, 1.0F / 5040);
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.0F / 720));
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.0F / 120));
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.0F / 24));
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.0F / 6));
  sum = hn::MulAdd(sum, r, hn::Set(d, 0.5F));
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.0F));
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.0F));
  // In two steps, as 2^n alone leaves the normal range at both ends.
  const auto whole = hn::ConvertTo(di, n);
  const auto part = hn::ShiftRight<1>(whole);
  const V scaled = hn::Mul(hn::Mul(sum, PowerOfTwo(d, part)), PowerOfTwo(d, hn::Sub(whole, part)));
  return hn::IfThenElse(hn::IsNaN(x), x, scaled);
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAFOLD_KERNELS_CPU_EXP_INL_H_
