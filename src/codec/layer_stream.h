// A calibration text run through the fine-tune and through what is coded of it so far, layer by layer: what each linear
// weight is fed with (inputs.h) is shown before the weight is coded, and the weights after it see what coding did.
//
// Both models stay in their mapped files; a layer's pages are given back once it is done. What is held is the state of
// all tokens, two activations sets of one layer (StateBytes). Called by the compressor.
#ifndef DELTAFOLD_CODEC_LAYER_STREAM_H_
#define DELTAFOLD_CODEC_LAYER_STREAM_H_

#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "codec/inputs.h"
#include "format/checkpoint.h"
#include "model/slots.h"
#include "tensor/kernel_context.h"
#include "tensor/linear_delta.h"

namespace df {

// Token ids of the fine-tune's vocabulary, sequence by sequence.
using TokenSequences = std::vector<std::vector<int32_t>>;

struct Calibration {
  KernelContext* context = nullptr;  // batch-invariant: results then do not depend on its threads
  TokenSequences sequences;
  // Of the state of all tokens and of second moments: text beyond it is left out, but for one sequence, and weights
  // whose moments do not fit beside it are fitted by rows (calibrate.h).
  uint64_t max_bytes = uint64_t{4} << 30;
  std::string source = {};  // for people: "self", a file's name
};

// Bytes that a layer's state of so many tokens takes, both models together.
uint64_t StateBytes(const ModelConfig& config, size_t n_tokens);

class LayerStream {
 public:
  // `base`, `fine_tune` and `calibration` outlive it. The only errors are those of LoadBase and kInvalidArgument (no
  // tokens, a token out of the vocabulary, a sequence longer than the model's positions).
  static Result<std::unique_ptr<LayerStream>> Create(const Checkpoint& base, const Checkpoint& fine_tune,
                                                     const Calibration& calibration);
  virtual ~LayerStream() = default;

  // Tokens of the text that fit.
  virtual size_t n_tokens() const = 0;

  // Back to the first layer. `embedding`: that of the coded model, looked at within the call; null: the fine-tune runs
  // alone, and both inputs of a weight are its own.
  virtual void Begin(const LinearDelta* embedding) = 0;

  // Shows the inputs of each matrix of the next layer in the order of computation; they are valid within the call. With
  // a coded model `visit` answers with Take(slot, its delta); alone it may be empty. The first error ends it; the only
  // other is kCorrupt for a file that was lost.
  using Visit = std::function<Status(LinearSlot slot, const WeightInputs& inputs)>;
  virtual Status RunLayer(const Visit& visit) = 0;
  // After the last layer: what the head is fed with, valid until the next call.
  virtual WeightInputs HeadInputs() = 0;
  virtual void Take(LinearSlot slot, const LinearDelta& delta) = 0;
};

}  // namespace df

#endif  // DELTAFOLD_CODEC_LAYER_STREAM_H_
