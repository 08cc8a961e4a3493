// Compresses a fine-tune against its base into a delta directory, tensor by tensor.
#ifndef DELTAFOLD_CODEC_COMPRESSOR_H_
#define DELTAFOLD_CODEC_COMPRESSOR_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/thread_pool.h"
#include "codec/choose.h"
#include "codec/code.h"
#include "codec/codec.h"
#include "codec/layer_stream.h"
#include "format/checkpoint.h"
#include "model/bind.h"

namespace df {

struct CompressOptions {
  // Of the layers' matrices, the embedding, and the head where there is one; nothing: chosen within the bound below.
  std::optional<Code> matrices = Code{};
  std::optional<Code> embeddings = Code{.kind = CodeKind::kExact};
  std::optional<Code> head = Code{.kind = CodeKind::kExact};
  // Of the chosen codes: the largest relative error of any, as stored, beside fused products (fused.h); else the bytes
  // of everything stored. 1.35 bits a weight are one plane everywhere and a third of a bit where it saves most.
  std::optional<double> max_error = {};
  Budget budget = {};
  bool budget_may_grow = false;  // where the smallest codes take more than it, they are taken
  // A text to fit the matrices' codes to (calibrate.h); none: they are taken from the differences alone.
  std::optional<Calibration> calibration = {};
  std::string base_name = {};  // for people: the model card and base_model_name_or_path
  std::string model_name = {};
  std::string origin = {};  // a section for the model card on how the fine-tune was made
  bool replace = false;     // an existing directory, and what a stopped run left
  bool resume = false;      // go on with what a stopped run of the same task left, if there is anything
  // Called before every tensor, with what is done so far; false stops with kCancelled. May be empty.
  struct Progress {
    size_t done_tensors = 0, n_tensors = 0;
    uint64_t done_bytes = 0, n_bytes = 0;  // of the fine-tune
  };
  std::function<bool(const Progress&)> on_progress = {};
};

// What became of one weight.
struct WeightReport {
  std::string name;
  SlotKind kind = SlotKind::kMatrix;
  std::string code;         // CodeName
  Shape shape;              // of the fine-tune
  uint64_t bytes = 0;       // of the delta
  uint64_t full_bytes = 0;  // as the fine-tune stores it
  Quality quality;
  std::optional<double> output_error = {};  // |x^ (D - D^)| / |x^ D| on the calibration text
  std::vector<Candidate> candidates = {};   // that the code was chosen from; empty where it was given
  size_t chosen = 0;                        // place among them
};

struct CompressReport {
  std::vector<WeightReport> weights;  // in the order of the model
  uint64_t delta_bytes = 0;           // tensors of the delta
  uint64_t full_bytes = 0;            // tensors of the fine-tune
  size_t n_unchanged = 0;
  double mean_relative_frobenius = 0;  // over the changed matrices; 0 when there are none
  double mean_cosine = 1;
  std::optional<double> mean_output_error;  // over the matrices that have one
  std::string base_fingerprint;
  size_t calibration_tokens = 0;   // that the codes were fitted to
  std::vector<std::string> files;  // side files stored
};

// The same for delta_config.json and --json: {"codec", "quality", "bytes", "tensors"}.
Json ToJson(const CompressReport& report, const CompressOptions& options);

// Writes `directory`, which appears whole or not at all. A run that was killed, or stopped by on_progress, leaves what
// it did beside it, to be resumed with the same inputs and options (codec/compress_steps.h); the bytes are then those
// of a run that was not stopped. Both checkpoints are read through their mappings and the pages given back; anonymous
// memory stays below three times the largest tensor + 64 * d_in f64 + 16 MiB that wait for the disk, and with a
// calibration its max_bytes and two f32 copies of a matrix besides. The bytes written depend on the inputs alone, with
// low-rank codes or a calibration also on the processor's instruction set (linalg/). Resumed with a calibration, what
// was encoded is encoded again, since the weights behind it see it, but not stored again. Codes are chosen in a pass of
// its own over all weights. The only errors are kFailedPrecondition (not a fine-tune of this base; the directory
// exists, is being written, or a stopped run's work is in the way or of another task; the bounds cannot be met),
// kInvalidArgument (calibration tokens that the fine-tune does not have), kUnsupported (a config difference that a
// delta cannot express, a code that cannot hold a weight), kCorrupt (NaN or infinity, naming the tensor), kCorrupt (a
// checkpoint that does not fit its config, or changed while it was read), kIo and kCancelled.
Result<CompressReport> Compress(ThreadPool& pool, const Checkpoint& base, const Checkpoint& fine_tune,
                                const std::string& directory, const CompressOptions& options);

}  // namespace df

#endif  // DELTAFOLD_CODEC_COMPRESSOR_H_
