// What every Highway file of cpu/ includes. How a primitive Foo is built (cpu/pack.cc is the example to copy):
//
//   foo.h          the contract                 foo.cc       IsScalarTarget() ? ref::Foo(...) : cpu::Foo(...)
//   ref/foo.{h,cc} the plain oracle             cpu/foo.h    declares cpu::Foo
//   cpu/foo.cc     #define HWY_TARGET_INCLUDE "kernels/cpu/foo.cc", then hwy/foreach_target.h, hwy/highway.h and this
//                  file; the body between HWY_BEFORE_NAMESPACE() and HWY_AFTER_NAMESPACE() in namespace
//                  df::kernels::cpu::HWY_NAMESPACE is compiled once a target; after `#if HWY_ONCE` stand
//                  HWY_EXPORT(FooImpl) and cpu::Foo, which calls HWY_DYNAMIC_DISPATCH(FooImpl).
//
// Vectors have a length known at compile time on every target that we build. Lambdas do not inherit the target: let a
// lambda call a function of the namespace, or mark it HWY_ATTR.
#if defined(DELTAFOLD_KERNELS_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAFOLD_KERNELS_CPU_SIMD_INL_H_
#undef DELTAFOLD_KERNELS_CPU_SIMD_INL_H_
#else
#define DELTAFOLD_KERNELS_CPU_SIMD_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"

// A loop over a small constant number of vector registers: must be unrolled whole, or the registers become an array.
#if HWY_COMPILER_CLANG
#define DF_UNROLL _Pragma("clang loop unroll(full)")
#else
#define DF_UNROLL _Pragma("GCC unroll 64")
#endif

namespace df::kernels::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
using UintTag = hn::ScalableTag<uint32_t>;
using UintVec = hn::Vec<UintTag>;
inline constexpr size_t kLanes = HWY_LANES(float);  // f32 elements of a vector

}  // namespace df::kernels::cpu::HWY_NAMESPACE

#endif  // DELTAFOLD_KERNELS_CPU_SIMD_INL_H_
