// One transformer layer (pre-norm, grouped-query attention, SwiGLU) over the rows of a mixed batch. Called by
// decoder.cc.
#ifndef DELTAFOLD_MODEL_LAYER_H_
#define DELTAFOLD_MODEL_LAYER_H_

#include <functional>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cost.h"
#include "kernels/norm.h"
#include "model/slots.h"
#include "model/weights.h"
#include "tensor/kernel_context.h"

namespace df {

// Rows [begin, end) that share variant and phase.
struct RowGroup {
  size_t begin = 0;
  size_t end = 0;
  kernels::Phase phase = kernels::Phase::kDecode;
  const VariantWeights* variant = nullptr;  // null = base
};

// Sees the input of a matrix, all rows of the step, before its product; what it changes in the rows' variants counts.
// For calibration, offline; serving has none.
using InputObserver = std::function<void(LinearSlot slot, MatView<const float> x)>;

// How the rows of one step divide; derived from the batch once for all layers.
struct StepRows {
  std::vector<RowGroup> groups;                     // ascending, covering every row
  std::vector<kernels::SequenceSegment> sequences;  // ascending, covering every row
  std::vector<kernels::LinearSegment> linear;       // [groups.size()] refilled for each matrix
  std::vector<kernels::NormSegment> norm;           // [groups.size()] refilled for each norm
  kernels::Cost cost;                               // of the step so far: matrices, attention, KV cache
  const InputObserver* observer = nullptr;          // null = none
};

// Activations of one step, all f32.
struct Activations {
  MatView<float> x;          // [n_tokens, d_model]  residual stream
  MatView<float> normed;     // [n_tokens, d_model]
  MatView<float> q;          // [n_tokens, n_heads * head_dim]
  MatView<float> k;          // [n_tokens, n_kv_heads * head_dim]
  MatView<float> v;          // [n_tokens, n_kv_heads * head_dim]
  MatView<float> attended;   // [n_tokens, n_heads * head_dim]
  MatView<float> projected;  // [n_tokens, d_model]  what a block adds to x
  MatView<float> gate;       // [n_tokens, d_ff]
  MatView<float> up;         // [n_tokens, d_ff]
  MatView<float> cos;        // [n_tokens, head_dim / 2]
  MatView<float> sin;        // [n_tokens, head_dim / 2]
};

// x += attention(norm(x)); x += feed_forward(norm(x)). Keys and values of every row are added to `kv`.
void DecoderLayer(KernelContext& context, const BaseWeights& base, size_t layer, StepRows& rows, const Activations& act,
                  const kernels::KvLayerView& kv);

}  // namespace df

#endif  // DELTAFOLD_MODEL_LAYER_H_
