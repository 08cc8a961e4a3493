#include "codec/full_checkpoint.h"

#include <cstdio>
#include <string_view>

#include "base/atomic_file.h"

namespace df {
namespace {

std::string_view TorchName(DType dtype) {
  switch (dtype) {
    case DType::kBf16: return "bfloat16";
    case DType::kF16: return "float16";
    default: return "float32";
  }
}

}  // namespace

std::string ShardFileName(size_t place, size_t n_shards) {
  if (n_shards == 1) return "model.safetensors";
  char name[64] = "";
  std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", place + 1, n_shards);
  return name;
}

Status WriteShardIndex(const std::string& directory, const std::map<std::string, std::string>& files,
                       uint64_t total_bytes) {
  const Json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", files}};
  return WriteFileAtomically(directory + "/model.safetensors.index.json", DumpJson(index, 2) + "\n");
}

Status WriteFullConfig(const std::string& source, const std::string& target, const ConfigChanges& changes) {
  DF_ASSIGN_OR_RETURN(Json config, ReadJsonFile(source + "/config.json"));
  const std::string key = config.contains("torch_dtype") ? "torch_dtype" : "dtype";
  config[key] = TorchName(changes.dtype);
  if (changes.vocab) config["vocab_size"] = *changes.vocab;
  if (changes.unties) config["tie_word_embeddings"] = false;
  for (const auto& [name, value] : changes.members.items()) config[name] = value;
  return WriteFileAtomically(target + "/config.json", DumpJson(config, 2) + "\n");
}

}  // namespace df
