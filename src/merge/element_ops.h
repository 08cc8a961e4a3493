// The inner loops of the element-wise methods, over a run of elements as f32 in the cache. ref/ has them as plain
// loops, cpu/ with Highway; the target in force (kernels/target.h) decides. Every target gives the same bits as ref/:
// products and sums in f64, one rounding an operation, sums over elements in kSumLanes lanes folded in a fixed order
// (codec/row_ops.h).
#ifndef DELTAFOLD_MERGE_ELEMENT_OPS_H_
#define DELTAFOLD_MERGE_ELEMENT_OPS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace df::merge::element_ops {

// Sum of the squares. NaN or infinite exactly where an element is: squares of f32 do not overflow f64.
double Squares(std::span<const float> values);

// Sets to +0 each value whose magnitude's bits are below `least`; of floats without sign the order is that of their
// bits.
void KeepAtLeast(uint32_t least, std::span<float> values);

// Sets value j to +0 unless Draw(key, first + j) < below. `first` + size <= 2^32.
void Drop(uint64_t key, uint64_t first, uint32_t below, std::span<float> values);
// The finaliser of MurmurHash3 (Appleby) over the counter, a half of the key before it and one between two rounds:
// each key has a sequence of its own, and no two are the other one in another order of its counters.
constexpr uint32_t Finalise(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  x = (x ^ (x >> 13)) * 0xC2B2AE35u;
  return x ^ (x >> 16);
}
constexpr uint32_t Draw(uint64_t key, uint32_t counter) {
  const uint32_t once = Finalise(counter ^ static_cast<uint32_t>(key));
  return Finalise(once + static_cast<uint32_t>(key >> 32));
}

// k runs d_i beside one of the base; a result's element j belongs to their element first + j, and lies in none of them.
struct Runs {
  std::span<const float* const> differences;  // [k]
  const float* base = nullptr;                // null: 0
  size_t first = 0;
};

// out = f32(base + sum_i coefficients_i d_i); returns the sum of (out - base)^2. coefficients [k].
double WeightedSum(const Runs& runs, std::span<const double> coefficients, std::span<float> out);

// k models beside the base, as they are stored: all of one dtype (F32, BF16, F16), at any address.
inline constexpr size_t kMaxStored = 4;
struct StoredRuns {
  DType dtype = DType::kBf16;
  std::span<const uint8_t* const> models;  // [k], 1 <= k <= kMaxStored
  const uint8_t* base = nullptr;           // null: 0
};
// WeightedSum of the differences d_i = f32(model_i) - f32(base), rounded to f32, in one look at each element; adds
// Squares(d_i) to squares_i. The same bits as by those two. coefficients, squares [k].
double StoredSum(const StoredRuns& runs, std::span<const double> coefficients, std::span<double> squares,
                 std::span<float> out);

struct Consensus {
  std::span<const double> coefficients;  // [k] what a difference counts
  std::span<const double> divisors;      // [k] what it adds to the divisor where it agrees; empty: no division
  double lambda = 1;
};
// With x_i = coefficients_i d_i: the elected sign is + where sum_i x_i >= 0, else -. m = the sum of the x_i of that
// sign, divided by the sum of their divisors where that is not 0. out = f32(base + lambda m); returns the sum of
// (out - base)^2.
double AgreeingSum(const Runs& runs, const Consensus& consensus, std::span<float> out);

}  // namespace df::merge::element_ops

#endif  // DELTAFOLD_MERGE_ELEMENT_OPS_H_
