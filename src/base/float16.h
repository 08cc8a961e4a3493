// bfloat16 and IEEE half as plain 16-bit storage, converted to and from float (round to nearest even).
// Source: IEEE 754-2019 binary16; bfloat16 is the upper half of binary32.
#ifndef DELTAFOLD_BASE_FLOAT16_H_
#define DELTAFOLD_BASE_FLOAT16_H_

#include <bit>
#include <cstdint>

namespace df {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

constexpr float ToFloat(Bf16 value) { return std::bit_cast<float>(uint32_t{value.bits} << 16); }
constexpr float ToFloat(float value) { return value; }

constexpr Bf16 ToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};  // NaN stays NaN
  return {static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

// Without branches, so that loops over it become vectors: the half's bits, moved to a float's place, are 2^112 times
// too small (bias 127 - 15), exactly so for subnormals too; infinity and NaN then need a float's largest exponent.
constexpr float ToFloat(F16 value) {
  const uint32_t magnitude = uint32_t{value.bits & 0x7FFFu} << 13;
  const uint32_t special = magnitude >= 0x0F800000u ? 0x7F800000u : 0u;
  const uint32_t scaled = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112F);
  return std::bit_cast<float>(scaled | special | (uint32_t{value.bits & 0x8000u} << 16));
}
F16 ToF16(float value);

}  // namespace df

#endif  // DELTAFOLD_BASE_FLOAT16_H_
