// Several safetensors files as one set of tensors, tied together by an index (`weight_map`: tensor -> file name).
#ifndef DELTAFOLD_FORMAT_SHARDS_H_
#define DELTAFOLD_FORMAT_SHARDS_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "format/safetensors.h"

namespace df {

// Tensor name -> shard. Shard names are plain names inside the directory (no '/', no leading dot, no NUL), at most
// 1024.
Result<std::map<std::string, std::string>> ReadShardIndex(const std::string& path);

// Opens all shards of `index_path`. Every tensor stands in exactly one shard, and it is the one that the index names.
Result<std::vector<std::shared_ptr<const SafetensorsFile>>> OpenShards(const std::string& directory,
                                                                       const std::string& index_path);

}  // namespace df

#endif  // DELTAFOLD_FORMAT_SHARDS_H_
