// Vector passes over one row of logits, in blocks of 64: what the sampler needs of a vocabulary without sorting it.
#ifndef DELTAFOLD_KERNELS_CPU_SAMPLE_SCAN_H_
#define DELTAFOLD_KERNELS_CPU_SAMPLE_SCAN_H_

#include <cstddef>
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

// weights[i] = exp((logits[i] - largest) / temperature), f32; weights may be logits. Relative error <= 2 ulp and what
// the rounded exponent makes of it, 2^-23 of its size.
void WeighLogits(std::span<const float> logits, float largest, float temperature, float* weights);

// block_mass[b] = sum of the block's weights; returns the sum over all blocks. The order is fixed by the size alone.
double WeighBlocks(std::span<const float> logits, float largest, float temperature, double* block_mass);

// out[i] = (logits[i] - largest) - log_mass.
void ShiftLogits(std::span<const float> logits, float largest, float log_mass, float* out);

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_SAMPLE_SCAN_H_
