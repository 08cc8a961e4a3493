// A Hugging Face model directory opened for reading: config.json and the weights, sharded or not.
#ifndef DELTAFOLD_FORMAT_CHECKPOINT_H_
#define DELTAFOLD_FORMAT_CHECKPOINT_H_

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "format/model_config.h"
#include "format/safetensors.h"

namespace df {

struct StoredTensor {
  TensorView view;
  const MappedFile* file = nullptr;  // to give pages back
};

// Immutable, thread-safe. Shard names come from the index and are confined to the directory: no '/', no "..", no NUL.
class Checkpoint {
 public:
  // `model.safetensors`, or `model.safetensors.index.json` and its shards. Every tensor stands in exactly one shard,
  // the index and the shards agree. Pickled weights alone are refused saying so, as is a link to nothing in the place
  // of weights. Says kNotFound when there are no weights.
  static Result<std::shared_ptr<const Checkpoint>> Open(const std::string& directory);

  const std::string& directory() const { return directory_; }
  const ModelConfig& config() const { return config_; }
  const StoredTensor* FindOrNull(std::string_view name) const;
  const std::vector<std::string>& names() const { return names_; }  // sorted
  uint64_t weight_bytes() const;
  Status CheckIntact() const;  // of all mapped files

 private:
  Checkpoint() = default;
  std::string directory_;
  ModelConfig config_;
  std::vector<std::shared_ptr<const SafetensorsFile>> shards_;
  std::vector<std::string> names_;
  std::unordered_map<std::string, StoredTensor> tensors_;
};

struct FingerprintOptions {
  bool use_cache = true;  // false: read everything again
};

// XXH3-128 over the given tensors in name order (name, dtype, shape, bytes), as 32 hex digits: the base_fingerprint of
// a delta is taken over the tensors that the architecture reads (model/bind.h lists them). Streams; pages are given
// back. Remembered by path, device, inode, size and modification time under $XDG_CACHE_HOME/deltafold or
// ~/.cache/deltafold; a cache that cannot be used is no error. The only errors are kNotFound (tensor) and kCorrupt
// (file lost while reading).
Result<std::string> Fingerprint(const Checkpoint& checkpoint, std::vector<std::string> names,
                                FingerprintOptions options = {});

// Digest of what tells cheaply that a checkpoint is still the one it was, in this process or another: config.json's
// content, and name, inode, size and modification time of every file of weights. The only errors are those of reading
// config.json.
Result<std::string> FilesIdentity(const Checkpoint& checkpoint);

// A model argument: an existing directory, or a hub id ("org/name") looked up in the local Hugging Face cache
// (HF_HUB_CACHE, HF_HOME/hub, ~/.cache/huggingface/hub; refs/main, else the only snapshot). Never the network.
Result<std::string> ResolveModelDirectory(const std::string& argument);

}  // namespace df

#endif  // DELTAFOLD_FORMAT_CHECKPOINT_H_
