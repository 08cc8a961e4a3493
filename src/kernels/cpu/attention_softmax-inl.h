// Softmax states of attention: one span of scores folded in, states of parts merged. Included once a vector target.
#if defined(DELTAFOLD_KERNELS_CPU_ATTENTION_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAFOLD_KERNELS_CPU_ATTENTION_SOFTMAX_INL_H_
#undef DELTAFOLD_KERNELS_CPU_ATTENTION_SOFTMAX_INL_H_
#else
#define DELTAFOLD_KERNELS_CPU_ATTENTION_SOFTMAX_INL_H_
#endif

#include <cstddef>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

// Online softmax (Milakov and Gimelshein 2018): folds one span of scores, of which `seen` count, into a row's state and
// leaves the weights exp(score - largest) in their place.
HWY_INLINE void UpdateRow(TokenRange seen, float* HWY_RESTRICT scores, const RowStates& states, size_t row) {
  const FloatTag d;
  const float lowest = -std::numeric_limits<float>::infinity();
  const size_t begin = seen.begin / kLanes * kLanes;
  const size_t end = (seen.end + kLanes - 1) / kLanes * kLanes;
  for (size_t t = begin; t < seen.begin; ++t) scores[t] = lowest;
  for (size_t t = seen.end; t < end; ++t) scores[t] = lowest;
  FloatVec top = hn::Set(d, states.Largest(row));
  for (size_t t = begin; t < end; t += kLanes) top = hn::Max(top, hn::LoadU(d, scores + t));
  top = hn::MaxOfLanes(d, top);
  FloatVec sum = hn::Zero(d);
  for (size_t t = begin; t < end; t += kLanes) {
    const FloatVec weight = ExpWeight(d, hn::Sub(hn::LoadU(d, scores + t), top));
    hn::StoreU(weight, d, scores + t);
    sum = hn::Add(sum, weight);
  }
  sum = hn::SumOfLanes(d, sum);
  // An unchanged top would scale by exp(0) = 1, exactly nothing.
  if (hn::GetLane(top) == states.Largest(row)) {
    states.Total(row) += hn::GetLane(sum);
    return;
  }
  const FloatVec scale = ExpWeight(d, hn::Sub(hn::Set(d, states.Largest(row)), top));
  states.Total(row) = hn::GetLane(hn::MulAdd(hn::Set(d, states.Total(row)), scale, sum));
  states.Largest(row) = hn::GetLane(top);
  float* HWY_RESTRICT sums = states.Sums(row);
  for (size_t dim = 0; dim < states.padded; dim += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, sums + dim), scale), d, sums + dim);
  }
}

inline void Clear(const RowStates& states, size_t n_rows) {
  const FloatTag d;
  for (size_t row = 0; row < n_rows; ++row) {
    for (size_t dim = 0; dim < states.padded; dim += kLanes) hn::Store(hn::Zero(d), d, states.Sums(row) + dim);
    states.Largest(row) = -std::numeric_limits<float>::infinity();
    states.Total(row) = 0.0F;
  }
}

// Folds the state of a later part into `to`. A row that saw nothing of the part stays as it is.
inline void MergeRow(const RowStates& from, size_t from_row, const RowStates& to, size_t row) {
  const FloatTag d;
  if (from.Total(from_row) == 0.0F) return;
  const FloatVec before = hn::Set(d, to.Largest(row));
  const FloatVec added = hn::Set(d, from.Largest(from_row));
  const FloatVec top = hn::Max(before, added);
  const FloatVec keep = ExpWeight(d, hn::Sub(before, top));
  const FloatVec scale = ExpWeight(d, hn::Sub(added, top));
  const FloatVec total = hn::Mul(hn::Set(d, to.Total(row)), keep);
  to.Total(row) = hn::GetLane(hn::MulAdd(hn::Set(d, from.Total(from_row)), scale, total));
  to.Largest(row) = hn::GetLane(top);
  const float* HWY_RESTRICT source = from.Sums(from_row);
  float* HWY_RESTRICT sums = to.Sums(row);
  for (size_t dim = 0; dim < to.padded; dim += kLanes) {
    const FloatVec kept = hn::Mul(hn::Load(d, sums + dim), keep);
    hn::Store(hn::MulAdd(hn::Load(d, source + dim), scale, kept), d, sums + dim);
  }
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAFOLD_KERNELS_CPU_ATTENTION_SOFTMAX_INL_H_
