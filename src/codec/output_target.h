// What a part of a delta should give on the calibration text (inputs.h): G = R C + W_ft E, R what the other parts leave
// of the difference. In blocks of rows, never stored here.
#ifndef DELTAFOLD_CODEC_OUTPUT_TARGET_H_
#define DELTAFOLD_CODEC_OUTPUT_TARGET_H_

#include <algorithm>

#include "base/thread_pool.h"
#include "codec/inputs.h"
#include "codec/residual.h"
#include "linalg/products.h"

namespace df {

// Rows of a weight that are multiplied at a time: enough for a product to be bound by arithmetic.
inline constexpr size_t kBlockRows = 64;

// body(first row, rows, thread) for blocks of fixed borders: what a block gives does not depend on the threads.
template <typename Body>
void ForEachBlock(ThreadPool& pool, size_t n_rows, const Body& body) {
  const size_t n_blocks = (n_rows + kBlockRows - 1) / kBlockRows;
  const size_t grain = std::max<size_t>((n_blocks + linalg::kMaxCallers - 1) / linalg::kMaxCallers, 1);
  pool.ParallelFor(n_blocks, grain, [&](size_t begin, size_t end, size_t thread) {
    for (size_t block = begin; block < end; ++block) {
      const size_t first = block * kBlockRows;
      body(first, std::min(kBlockRows, n_rows - first), thread);
    }
  });
}

// Looks at all three, which must outlive it; `inputs` have C. Thread-safe.
class OutputTarget {
 public:
  OutputTarget(const WeightPair& pair, const LinearDelta& others, const WeightInputs& inputs);

  // Rows [first, first + g.rows) of G; `memory` [g.rows, d_in] besides.
  void Read(size_t first, MatView<float> memory, MatView<float> g) const;

 private:
  const WeightPair& pair_;
  const WeightInputs& inputs_;
  Residual residual_;
};

// <a, b> in f64.
double Dot(std::span<const float> a, std::span<const float> b);

// |x^ (D - D^)|^2 over the outputs, a token's mean, ridge included: tr(R C R^T). `inputs` have C.
double OutputEnergy(ThreadPool& pool, const WeightPair& pair, const LinearDelta& delta, const WeightInputs& inputs);

// What such energies are set against: |W x^|^2 of the fine-tune's weight, tr(W C W^T); without inputs (null) |W|^2.
double SignalEnergy(ThreadPool& pool, const TensorView& weight, const WeightInputs* inputs);

}  // namespace df

#endif  // DELTAFOLD_CODEC_OUTPUT_TARGET_H_
