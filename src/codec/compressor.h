// Compresses a fine-tune against its base into a delta directory, tensor by tensor.
#ifndef DELTAFOLD_CODEC_COMPRESSOR_H_
#define DELTAFOLD_CODEC_COMPRESSOR_H_

#include <functional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "base/thread_pool.h"
#include "codec/codec.h"
#include "codec/sign.h"
#include "format/checkpoint.h"
#include "model/bind.h"

namespace df {

// How the vocabulary's weights (embedding, and head where there is one) are stored. The first three are exact.
enum class VocabularyCode { kAuto, kRaw, kRows, kSign };  // kAuto: absent, rows or raw, whichever is smallest

struct VocabularyOptions {
  VocabularyCode code = VocabularyCode::kAuto;
  size_t n_planes = 2;  // of kSign: one bit costs embeddings more than matrices (docs/formats/delta.md)
};

struct CompressOptions {
  SignOptions sign = {};  // of the matrices of the layers
  VocabularyOptions embeddings = {};
  VocabularyOptions head = {};
  std::string base_name = {};  // for people: the model card and base_model_name_or_path
  std::string model_name = {};
  bool replace = false;  // an existing directory
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
};

struct CompressReport {
  std::vector<WeightReport> weights;  // in the order of computation
  uint64_t delta_bytes = 0;           // tensors of the delta
  uint64_t full_bytes = 0;            // tensors of the fine-tune
  size_t n_unchanged = 0;
  double mean_relative_frobenius = 0;  // over the sign-coded matrices; 0 when there are none
  double mean_cosine = 1;
  std::string base_fingerprint;
  std::vector<std::string> files;  // side files stored
};

// The same for delta_config.json and --json: {"codec", "quality", "bytes", "tensors"}.
Json ToJson(const CompressReport& report, const CompressOptions& options);

// Writes `directory`, which appears whole or not at all. Both checkpoints are read through their mappings and the pages
// given back; anonymous memory stays below twice the largest tensor + 64 * d_in f64. The bytes written depend on the
// inputs alone. The only errors are kFailedPrecondition (not a fine-tune of this base; the directory exists),
// kUnsupported (a config difference that a delta cannot express), kCorrupt (NaN or infinity, naming the
// tensor), kCorrupt (a checkpoint that does not fit its config, or changed while it was read), kIo and kCancelled.
Result<CompressReport> Compress(ThreadPool& pool, const Checkpoint& base, const Checkpoint& fine_tune,
                                const std::string& directory, const CompressOptions& options);

}  // namespace df

#endif  // DELTAFOLD_CODEC_COMPRESSOR_H_
