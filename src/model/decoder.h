// One step of the transformer over a mixed batch.
#ifndef DELTAFOLD_MODEL_DECODER_H_
#define DELTAFOLD_MODEL_DECODER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cost.h"
#include "model/kv_pool.h"
#include "model/layer.h"
#include "model/weights.h"
#include "tensor/kernel_context.h"

namespace df {

// Rows [begin, end): consecutive tokens of one sequence, one variant, one phase.
struct BatchSegment {
  size_t begin = 0;
  size_t end = 0;
  kernels::Phase phase = kernels::Phase::kDecode;
  const VariantWeights* variant = nullptr;  // null = base
  size_t position = 0;                      // of the first row in its sequence
  const int32_t* block_table = nullptr;     // pool blocks of the sequence from position 0, covering the last row
};

// A step's work. Segments are ascending and cover [0, tokens.size()); equal (variant, phase) should be neighbours: they
// then share one pass over the signs.
struct Batch {
  std::vector<int32_t> tokens;  // [n_tokens], each below its variant's vocabulary
  std::vector<BatchSegment> segments;
  std::vector<size_t> logit_rows;  // ascending rows whose logits are wanted

  void Clear() {
    tokens.clear();
    segments.clear();
    logit_rows.clear();
  }
};

// Engine thread only. Memory for activations grows to the largest batch seen and is then reused.
class Decoder {
 public:
  explicit Decoder(std::shared_ptr<const BaseWeights> base);
  ~Decoder();

  // Forward, then Logits of `batch.logit_rows`.
  MatView<float> Step(KernelContext& context, const Batch& batch, KvPool& kv);

  // Writes K and V of every row.
  void Forward(KernelContext& context, const Batch& batch, KvPool& kv);
  // Of `rows`, ascending, of the last Forward's batch: [rows.size(), widest vocabulary] f32, the caller's to change,
  // valid until the next call. A row's bits depend on its own sequence, variant and phase alone; many rows of a large
  // vocabulary are to be asked for in parts.
  MatView<float> Logits(KernelContext& context, std::span<const size_t> rows);

  // The parts of Forward, for calibration, which looks between them: Begin, RunLayer for every layer in order,
  // NormOutputs. `kv` is the layer's; `observer` may be empty. What variants hold is read when it is used.
  void Begin(KernelContext& context, const Batch& batch);
  void RunLayer(KernelContext& context, size_t layer, const kernels::KvLayerView& kv, const InputObserver& observer);
  // What the head is fed with, [n_tokens, d_model], after the last layer; valid until the next Begin or Forward.
  MatView<const float> NormOutputs(KernelContext& context);

  const BaseWeights& base() const { return *base_; }
  size_t activation_bytes() const;
  // What the last Forward and the Logits since had to move and compute at least (kernels/cost.h): matrices, attention
  // and the KV cache.
  kernels::Cost step_cost() const;

 private:
  struct Memory;  // activations and the step's segments, reused from step to step

  void DivideRows(const Batch& batch);
  void Embed(KernelContext& context, const Batch& batch);
  const float* FinalNorm(const RowGroup& group) const;

  std::shared_ptr<const BaseWeights> base_;
  std::unique_ptr<Memory> memory_;
};

}  // namespace df

#endif  // DELTAFOLD_MODEL_DECODER_H_
