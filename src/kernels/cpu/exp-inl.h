// exp(x) for f32 vectors, shared by attention, activation and sample. Included once a vector target (foreach_target).
//
// x = n ln2 + r, |r| <= ln2/2: exp(x) = 2^n (1 + r + r^2/2! + ... + r^7/7!). Truncation: r^8/8! <= 5.2e-9 relative,
// 0.09 ulp; ln2 stands in two parts, the upper with trailing zeros so that n times it is exact, which leaves 0.3 ulp;
// the Horner steps add about 1 ulp. Hence relative error <= 2 ulp. Where the result would be subnormal (below 2^-126)
// it is 0: a subnormal product costs some 150 cycles.
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

// exp(x) = exp_n(r) 2^n for x in [-87.33, 89] or NaN.
inline constexpr float kExpLowest = -87.33F;  // ln 2^-126 = -87.3365

template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpMantissa(D d, V x, V& n) {
  n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504088896341F)));  // 1/ln2
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375F), x);          // ln2 rounded to 10 bits: n * it is exact
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4F), r);         // ln2 minus that
  V sum = hn::Set(d, 1.0F / 5040);
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.0F / 720));
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.0F / 120));
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.0F / 24));
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.0F / 6));
  sum = hn::MulAdd(sum, r, hn::Set(d, 0.5F));
  sum = hn::MulAdd(sum, r, hn::Set(d, 1.0F));
  return hn::MulAdd(sum, r, hn::Set(d, 1.0F));
}

// 0 below kExpLowest, inf above 88.73, NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  const hn::RebindToSigned<D> di;
  const V lowest = hn::Set(d, kExpLowest);
  V n;
  const V sum = ExpMantissa(d, hn::Min(hn::Max(x, lowest), hn::Set(d, 89.0F)), n);
  // In two steps, as 2^128 is no float.
  const auto whole = hn::ConvertTo(di, n);
  const auto half = hn::ShiftRight<1>(whole);
  const V scaled = hn::Mul(hn::Mul(sum, PowerOfTwo(d, half)), PowerOfTwo(d, hn::Sub(whole, half)));
  return hn::IfThenElse(hn::IsNaN(x), x, hn::IfThenElseZero(hn::Ge(x, lowest), scaled));
}

// exp(x) for x <= 0, at least 2^-126 (also for -inf): a weight beside another of 1, where that is as good as 0. NaN
// stays NaN: Max gives its second operand when one is (x86), or NaN (arm64).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpWeight(D d, V x) {
  const hn::RebindToSigned<D> di;
  V n;
  const V sum = ExpMantissa(d, hn::Max(hn::Set(d, kExpLowest), x), n);
  return hn::Mul(sum, PowerOfTwo(d, hn::ConvertTo(di, n)));
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAFOLD_KERNELS_CPU_EXP_INL_H_
