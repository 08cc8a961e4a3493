// What stands around the weights of a full checkpoint that is written here: names of shards, their index, config.json.
#ifndef DELTAFOLD_CODEC_FULL_CHECKPOINT_H_
#define DELTAFOLD_CODEC_FULL_CHECKPOINT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/json.h"
#include "base/status.h"
#include "tensor/dtype.h"

namespace df {

// As other tools split.
inline constexpr uint64_t kMaxShardBytes = 5'000'000'000;

// Of `place` (from 0) among `n_shards`: "model.safetensors", "model-00002-of-00003.safetensors".
std::string ShardFileName(size_t place, size_t n_shards);

// model.safetensors.index.json of `directory`, for weights in more than one file. `files`: tensor -> file. kIo.
Status WriteShardIndex(const std::string& directory, const std::map<std::string, std::string>& files,
                       uint64_t total_bytes);

struct ConfigChanges {
  DType dtype = DType::kBf16;        // that most weights were written with
  std::optional<size_t> vocab = {};  // rows of the embedding, where they may differ
  bool unties = false;               // a head of its own is written where the config may say tied
  Json members = Json::object();     // further ones to set
};

// The config.json of directory `source` with those changes, into `target`: the dtype under whichever of its two names
// the config uses. The only errors are those of reading it and kIo.
Status WriteFullConfig(const std::string& source, const std::string& target, const ConfigChanges& changes);

}  // namespace df

#endif  // DELTAFOLD_CODEC_FULL_CHECKPOINT_H_
