// base + delta (or LoRA adapter) -> a full Hugging Face checkpoint that any other program can load.
#ifndef DELTAFOLD_CODEC_MATERIALIZE_H_
#define DELTAFOLD_CODEC_MATERIALIZE_H_

#include <functional>
#include <optional>
#include <string>

#include "base/thread_pool.h"
#include "codec/full_checkpoint.h"
#include "format/checkpoint.h"

namespace df {

struct StreamProgress {
  size_t done_tensors = 0, n_tensors = 0;
  uint64_t done_bytes = 0, n_bytes = 0;
};

struct MaterializeOptions {
  std::optional<DType> dtype = {};                              // of all weights; absent: each as in the base
  uint64_t max_shard_bytes = kMaxShardBytes;                    // a base in smaller shards lowers it
  bool replace = false;                                         // an existing directory
  std::function<bool(const StreamProgress&)> on_progress = {};  // before every tensor; false stops with kCancelled
};

struct MaterializeReport {
  size_t n_tensors = 0;
  size_t n_shards = 0;
  uint64_t bytes = 0;  // of weights
};

// Writes `target`, which appears whole or not at all: weights (in shards with an index where they are large),
// config.json with the dtype written, tokenizer, chat template and generation files (the variant's, else the base's).
// Streams in blocks of rows. W = f32(base) + D^, rounded once to the stored dtype. The only errors are those of
// BindVariant, kFailedPrecondition (target exists; a weight overflows F16), kCorrupt, kIo, kCancelled.
Result<MaterializeReport> Materialize(ThreadPool& pool, const Checkpoint& base, const std::string& variant_directory,
                                      const std::string& target, const MaterializeOptions& options);

}  // namespace df

#endif  // DELTAFOLD_CODEC_MATERIALIZE_H_
