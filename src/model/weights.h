// model/: a decoder-only transformer on packed weights. Input: a Batch of rows of any variants; output: logits. Called
// by engine/. `config -> layer -> decoder`: layer.cc is one transformer layer, decoder.cc the loop around it. Nothing
// here reads or writes an activation: views go to kernels/.
//
// weights.h: what a base and a variant own, and how they are loaded (packed tensor by tensor; a variant's own matrix
// never exists unless the delta stores one).
#ifndef DELTAFOLD_MODEL_WEIGHTS_H_
#define DELTAFOLD_MODEL_WEIGHTS_H_

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "format/checkpoint.h"
#include "kernels/linear.h"
#include "model/bind.h"
#include "model/slots.h"

namespace df {

class DeltaDirectory;  // format/delta_dir.h
class PeftAdapter;     // format/peft_adapter.h

struct LayerWeights {
  std::array<kernels::LinearWeight, kLinearSlots> linear;
  std::array<Buffer<float>, kNormSlots> norm;  // [d_model], [d_model], [head_dim], [head_dim]
};

// Immutable after LoadBase, thread-safe.
struct BaseWeights {
  ModelConfig config;
  bool tied = false;
  std::string fingerprint;           // 32 hex digits
  kernels::LinearWeight embedding;   // [vocab, d_model]; the head too when tied
  kernels::LinearWeight head;        // [vocab, d_model]; empty when tied
  std::vector<LayerWeights> layers;  // [n_layers]
  Buffer<float> final_norm;          // [d_model]
  RopeFrequencies rope;
  size_t bytes = 0;  // of all weights
  size_t mapped_bytes =
      0;  // those of them that lie in mapped files: shared between processes, given up when memory is short
  std::shared_ptr<const Checkpoint> mapped;  // owner of the mapped ones; else null

  const kernels::LinearWeight& HeadWeight() const { return tied ? embedding : head; }
  // kIo naming the file once mapped weights were lost, since it was cut short or cannot be read: what a step has
  // computed before this says so is void.
  Status CheckIntact() const;
};

// Where the matrices of a base lie.
enum class WeightMemory : uint8_t {
  kRam,     // repacked tensor by tensor into huge pages; mapped pages are given back behind: one copy of the weights
  kMapped,  // in the checkpoint's files, as stored: nothing is copied, decoding is slower
};

// The only errors are those of Bind and BaseFingerprint, and kCorrupt for a file that is cut short meanwhile.
Result<std::shared_ptr<const BaseWeights>> LoadBase(KernelContext& context,
                                                    std::shared_ptr<const Checkpoint> checkpoint,
                                                    WeightMemory memory = WeightMemory::kRam);

struct LayerDelta {
  std::array<kernels::PackedDelta, kLinearSlots> linear;  // PackedDelta::IsBase() where unchanged
  std::array<Buffer<float>, kNormSlots> norm;             // empty = the base's
};

enum class VariantKind { kDelta, kLora };

// Immutable after loading, thread-safe. Refers to no base: the decoder is given both.
struct VariantWeights {
  VariantKind kind = VariantKind::kDelta;
  // Of an adapter on top of a delta: whose memory parts of this one lie in.
  std::shared_ptr<const VariantWeights> parent;
  std::unique_ptr<Arena> arena;  // of a delta: the memory of all its buffers; goes after them
  ModelConfig config;
  std::string digest;              // of all that can change an answer, 32 hex digits
  std::vector<LayerDelta> layers;  // [n_layers]
  kernels::PackedDelta embedding;  // d_out = the variant's vocabulary
  // The head is `head_on_embedding ? base embedding : base head` with `HeadDelta()` applied.
  bool head_on_embedding = false;
  std::optional<kernels::PackedDelta> head;  // absent: tied, `embedding` serves both
  Buffer<float> final_norm;                  // empty = the base's
  std::optional<RopeFrequencies> rope;       // absent = the base's
  size_t bytes = 0;                          // memory held, everything counted but the parent's

  const kernels::PackedDelta& HeadDelta() const { return head ? *head : embedding; }
};

struct LoadOptions {
  // The variant's identity as read when its files were opened; "" = DeltaDirectory::Generation() of now.
  std::string digest = {};
  // Called on the loading thread after each weight with the bytes packed; a failure ends the load. May sleep.
  std::function<Status(size_t bytes)> progress = {};
};

// Reads the delta once: the content digest is verified over the very bytes that are packed.
// kFailedPrecondition when the delta was made for another base (both fingerprints are named), kCorrupt when the digest
// is another, a weight has no place or the file was cut short.
Result<std::shared_ptr<const VariantWeights>> LoadDelta(KernelContext& context, const BaseWeights& base,
                                                        const DeltaDirectory& delta, const LoadOptions& options = {});
// VariantWeights::bytes of that load, from shapes and dtypes alone. Errors as of LoadDelta, but for the digest's.
Result<size_t> DeltaBytes(const BaseWeights& base, const DeltaDirectory& delta);

// An adapter on the base, or on `parent`, a delta of the same base: W = (base + delta) + s B A. What the adapter leaves
// alone is the parent's own memory, which lives as long as the result. The only errors are those of PeftAdapter::Bind
// and Digest, kUnsupported (a parent that is an adapter; new token rows where the parent has low ranks) and kCorrupt
// (DoRA where a row of the weight has no length; a head and an embedding of two vocabularies).
Result<std::shared_ptr<const VariantWeights>> LoadAdapter(KernelContext& context, const BaseWeights& base,
                                                          const PeftAdapter& adapter,
                                                          std::shared_ptr<const VariantWeights> parent = nullptr);
// What such a load gives, from shapes and dtypes alone. Tables that replace or merge rows of tokens hold at most
// `most_bytes`, by how many rows turn out to differ; all else holds exactly that.
struct AdapterSize {
  size_t most_bytes = 0;
  size_t vocab = 0;  // of the variant
};
// `parent`: the delta under the adapter, null = the base. Errors as of PeftAdapter::Bind.
Result<AdapterSize> MeasureAdapter(const BaseWeights& base, const PeftAdapter& adapter, const DeltaDirectory* parent);

// Sets `variant.bytes`.
void CountBytes(VariantWeights& variant);

}  // namespace df

#endif  // DELTAFOLD_MODEL_WEIGHTS_H_
