// Inverse RoPE frequencies, in the reference's order of operations: f32 powers and vectors, f64 scalars rounded once.
// Sources: linear: position interpolation (arXiv 2306.15595); yarn: arXiv 2309.00071; llama3: the Llama 3.1 release.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "format/model_config.h"

namespace df {
namespace {

// theta^(2i/d)
std::vector<float> Powers(double theta, size_t head_dim) {
  std::vector<float> powers(head_dim / 2);
  for (size_t i = 0; i < powers.size(); ++i) {
    powers[i] = std::pow(static_cast<float>(theta), static_cast<float>(2 * i) / static_cast<float>(head_dim));
  }
  return powers;
}

// Wavelengths below original/high stay, above original/low are stretched by `factor`, between both are mixed.
void ApplyLlama3(const RopeConfig& rope, std::vector<float>& inv_freq) {
  const auto factor = static_cast<float>(rope.factor);
  const auto low = static_cast<float>(rope.low_freq_factor);
  const auto original = static_cast<float>(rope.original_max_positions);
  const auto low_wavelength = static_cast<float>(rope.original_max_positions / rope.low_freq_factor);
  const auto high_wavelength = static_cast<float>(rope.original_max_positions / rope.high_freq_factor);
  const auto range = static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  for (float& f : inv_freq) {
    const float wavelength = static_cast<float>(2 * std::numbers::pi) / f;
    if (wavelength < high_wavelength) continue;
    if (wavelength > low_wavelength) {
      f /= factor;
      continue;
    }
    const float smooth = (original / wavelength - low) / range;
    f = (1.0F - smooth) * f / factor + smooth * f;
  }
}

// The (real) pair index whose wave turns `rotations` times within the original length.
double CorrectionIndex(const RopeConfig& rope, double rotations, double head_dim) {
  return head_dim * std::log(rope.original_max_positions / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

// Pairs that turn more than beta_fast times stay, fewer than beta_slow are stretched, a linear ramp lies between.
void ApplyYarn(const RopeConfig& rope, size_t head_dim, const std::vector<float>& powers,
               std::vector<float>& inv_freq) {
  const auto dim = static_cast<double>(head_dim);
  double low = CorrectionIndex(rope, rope.beta_fast, dim);
  double high = CorrectionIndex(rope, rope.beta_slow, dim);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;  // the reference's way around the division by zero
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const float ramp =
        std::clamp((static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0F, 1.0F);
    const float kept = 1.0F - ramp;
    const float stretched = 1.0F / (static_cast<float>(rope.factor) * powers[i]);
    inv_freq[i] = stretched * (1.0F - kept) + inv_freq[i] * kept;
  }
}

double YarnMagnitude(const RopeConfig& rope) {
  if (rope.attention_factor) return *rope.attention_factor;
  const auto scale = [&rope](double mscale) {
    return rope.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(rope.factor) + 1.0;
  };
  const double numerator = rope.mscale.value_or(0), denominator = rope.mscale_all_dim.value_or(0);
  if (numerator != 0 && denominator != 0) return scale(numerator) / scale(denominator);
  return scale(1.0);
}

}  // namespace

RopeFrequencies ComputeRopeFrequencies(const RopeConfig& rope, size_t head_dim) {
  RopeFrequencies result;
  const std::vector<float> powers = Powers(rope.theta, head_dim);
  for (const float power : powers) result.inv_freq.push_back(1.0F / power);
  switch (rope.kind) {
    case RopeConfig::Kind::kDefault:
    case RopeConfig::Kind::kDynamic: break;  // within the original length dynamic is the default
    case RopeConfig::Kind::kLinear:
      for (float& f : result.inv_freq) f /= static_cast<float>(rope.factor);
      break;
    case RopeConfig::Kind::kLlama3: ApplyLlama3(rope, result.inv_freq); break;
    case RopeConfig::Kind::kYarn:
      ApplyYarn(rope, head_dim, powers, result.inv_freq);
      result.magnitude = static_cast<float>(YarnMagnitude(rope));
      break;
  }
  return result;
}

}  // namespace df
