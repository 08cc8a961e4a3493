// Counter-based random numbers: the k-th draw of a seed is a pure function of (seed, k), so that a sampled answer does
// not depend on what else ran. Source: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
#ifndef DELTAFOLD_BASE_RNG_H_
#define DELTAFOLD_BASE_RNG_H_

#include <cstdint>

namespace df {

constexpr uint64_t MixBits(uint64_t x) {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

constexpr uint64_t RandomBits(uint64_t seed, uint64_t k) { return MixBits(MixBits(seed) ^ MixBits(~k)); }

// Uniform in [0, 1), 53 bits.
constexpr double RandomUnit(uint64_t seed, uint64_t k) {
  return static_cast<double>(RandomBits(seed, k) >> 11) * 0x1.0p-53;
}

}  // namespace df

#endif  // DELTAFOLD_BASE_RNG_H_
