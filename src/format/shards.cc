#include "format/shards.h"

#include <algorithm>
#include <set>

#include "base/json.h"
#include "format/message.h"

namespace df {
namespace {

constexpr size_t kMaxIndexBytes = size_t{64} << 20;  // 100 000 tensors take 10 MB
constexpr size_t kMaxShards = 1024;                  // far below the number of files that may be mapped

// A file name inside the directory: an index may not point anywhere else.
Status CheckShardName(const std::string& name) {
  const bool leaves = name.find('/') != std::string::npos || name.find('\\') != std::string::npos ||
                      name.find('\0') != std::string::npos || name.starts_with('.');
  if (leaves) return Corrupt("shard name " + Quoted(name) + " is not a plain file name inside the directory");
  if (!name.ends_with(".safetensors")) return Corrupt("shard name " + Quoted(name) + " does not end with .safetensors");
  return Status::Ok();
}

}  // namespace

Result<std::map<std::string, std::string>> ReadShardIndex(const std::string& path) {
  DF_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path, {.max_depth = 16, .max_bytes = kMaxIndexBytes}));
  const Json* map = JsonMemberOrNull(json, "weight_map");
  if (map == nullptr || !map->is_object()) return Corrupt(path + ": \"weight_map\" must be an object");
  std::map<std::string, std::string> shard_of;
  std::set<std::string> shards;
  for (const auto& [name, shard] : map->items()) {
    if (!shard.is_string()) return Corrupt(path + ": the shard of tensor " + Quoted(name) + " must be a string");
    const auto& file = shard.get_ref<const std::string&>();
    if (const Status status = CheckShardName(file); !status.ok()) return status.Annotate(path);
    if (shards.insert(file).second && shards.size() > kMaxShards) {
      return ResourceExhausted(path + " names more than " + std::to_string(kMaxShards) + " shards");
    }
    shard_of.emplace(name, file);
  }
  if (shard_of.empty()) return Corrupt(path + " names no tensor");
  return shard_of;
}

Result<std::vector<std::shared_ptr<const SafetensorsFile>>> OpenShards(const std::string& directory,
                                                                       const std::string& index_path) {
  DF_ASSIGN_OR_RETURN(const auto shard_of, ReadShardIndex(index_path));
  std::set<std::string> shard_names;
  for (const auto& [tensor, shard] : shard_of) shard_names.insert(shard);
  std::vector<std::shared_ptr<const SafetensorsFile>> files;
  size_t n_found = 0;
  for (const std::string& shard : shard_names) {
    Result<std::shared_ptr<const SafetensorsFile>> file = SafetensorsFile::Open(directory + "/" + shard);
    if (!file.ok() && file.status().code() == StatusCode::kNotFound) {
      return Corrupt(index_path + " names shard " + Quoted(shard) + ", which does not exist");
    }
    if (!file.ok()) return file.status();
    for (const NamedTensor& tensor : (*file)->tensors()) {
      const auto at = shard_of.find(tensor.name);
      if (at == shard_of.end() || at->second != shard) {
        return Corrupt("tensor " + Quoted(tensor.name) + " stands in shard " + Quoted(shard) + ", the index " +
                       (at == shard_of.end() ? "does not name it" : "puts it into " + Quoted(at->second)));
      }
      ++n_found;
    }
    files.push_back(*std::move(file));
  }
  if (n_found == shard_of.size()) return files;
  for (const auto& [tensor, shard] : shard_of) {
    const bool found = std::any_of(files.begin(), files.end(),
                                   [&name = tensor](const auto& file) { return file->FindOrNull(name) != nullptr; });
    if (!found)
      return Corrupt("tensor " + Quoted(tensor) + " is not in shard " + Quoted(shard) + ", where the index puts it");
  }
  return Internal("index and shards disagree in " + directory);
}

}  // namespace df
