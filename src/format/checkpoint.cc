#include "format/checkpoint.h"

#include <algorithm>
#include <filesystem>

#include "base/presence.h"
#include "format/shards.h"

namespace df {
namespace {

namespace fs = std::filesystem;

Status MissingWeights(const std::string& directory) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".bin" && extension != ".pt" && extension != ".pth" && extension != ".ckpt") continue;
    return Unsupported(directory + " has only pickled weights (" + entry.path().filename().string() +
                       "), which may run code when read: convert them to safetensors");
  }
  return NotFound(directory + " has neither model.safetensors nor model.safetensors.index.json");
}

}  // namespace

Result<std::shared_ptr<const Checkpoint>> Checkpoint::Open(const std::string& directory) {
  std::shared_ptr<Checkpoint> checkpoint(new Checkpoint);
  checkpoint->directory_ = directory;
  DF_ASSIGN_OR_RETURN(checkpoint->config_, LoadModelConfig(directory));

  const std::string single = directory + "/model.safetensors";
  const std::string index = single + ".index.json";
  DF_ASSIGN_OR_RETURN(const bool has_single, HasFile(single));
  DF_ASSIGN_OR_RETURN(const bool has_index, HasFile(index));
  if (has_single) {
    DF_ASSIGN_OR_RETURN(std::shared_ptr<const SafetensorsFile> file, SafetensorsFile::Open(single));
    checkpoint->shards_.push_back(std::move(file));
  } else if (has_index) {
    DF_ASSIGN_OR_RETURN(checkpoint->shards_, OpenShards(directory, index));
  } else {
    return MissingWeights(directory);
  }
  for (const auto& shard : checkpoint->shards_) {
    for (const NamedTensor& tensor : shard->tensors()) {
      checkpoint->tensors_.emplace(tensor.name, StoredTensor{tensor.view, &shard->file()});
      checkpoint->names_.push_back(tensor.name);
    }
  }
  std::sort(checkpoint->names_.begin(), checkpoint->names_.end());
  return std::shared_ptr<const Checkpoint>(std::move(checkpoint));
}

const StoredTensor* Checkpoint::FindOrNull(std::string_view name) const {
  const auto at = tensors_.find(std::string(name));
  return at == tensors_.end() ? nullptr : &at->second;
}

uint64_t Checkpoint::weight_bytes() const {
  uint64_t sum = 0;
  for (const auto& [name, tensor] : tensors_) sum += tensor.view.bytes.size();
  return sum;
}

Status Checkpoint::CheckIntact() const {
  for (const auto& shard : shards_) DF_RETURN_IF_ERROR(shard->file().CheckIntact());
  return Status::Ok();
}

}  // namespace df
