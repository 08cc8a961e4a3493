// Vector passes over one row of logits, in blocks of 64: what the sampler needs of a vocabulary without sorting it.
#ifndef DELTAFOLD_KERNELS_CPU_SAMPLE_SCAN_H_
#define DELTAFOLD_KERNELS_CPU_SAMPLE_SCAN_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace df::kernels::cpu {

// Small enough that a block can be searched by element, large enough that 150 000 logits are 2400 blocks.
inline constexpr size_t kVocabBlock = 64;
inline size_t VocabBlocks(size_t vocab) { return (vocab + kVocabBlock - 1) / kVocabBlock; }

struct RowScan {
  float largest = 0.0F;
  bool servable = false;  // no NaN, no +Inf, at least one finite logit
};

// The largest logit of the row and of every block, block_largest [VocabBlocks(logits.size())].
RowScan ScanRow(std::span<const float> logits, float* block_largest);

// The smallest finite logit of a servable row.
float Smallest(std::span<const float> logits);

// weights[i] = exp((logits[i] - largest) / temperature), f32; weights may be logits. Relative error <= 2 ulp and what
// the rounded exponent makes of it, 2^-23 of its size; 0 below e^-87.33.
void WeighLogits(std::span<const float> logits, float largest, float temperature, float* weights);

// The same for all of a row, weights [whole blocks] with zeros behind the row, and block_mass[b] = sum of the block's
// weights; returns the sum over all blocks. The order is fixed by the size alone.
double WeighBlocks(std::span<const float> logits, float largest, float temperature, float* weights, double* block_mass);

// A row after ScanRow and WeighBlocks.
struct WeighedRow {
  std::span<const float> logits;
  const float* block_largest = nullptr;
  float* weights = nullptr;
};

// masses[i] = sum of the weights of all logits >= thresholds[i], which rise. Blocks are summed in f32, then in f64.
inline constexpr size_t kThresholds = 8;
using Thresholds = std::array<float, kThresholds>;
using Masses = std::array<double, kThresholds>;
Masses MassesFrom(const WeighedRow& row, const Thresholds& thresholds);

// Weights of logits < threshold become 0; block_mass and the result as of WeighBlocks.
double KeepFrom(const WeighedRow& row, float threshold, double* block_mass);

// Indices of the logits in [low, high), rising, into tokens; returns how many.
size_t FindBetween(std::span<const float> logits, const float* block_largest, float low, float high, int32_t* tokens);

// out[i] = (logits[i] - largest) - log_mass.
void ShiftLogits(std::span<const float> logits, float largest, float log_mass, float* out);

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_SAMPLE_SCAN_H_
