#include "format/delta_dir.h"

#include <algorithm>
#include <array>

#include "base/atomic_file.h"
#include "base/json.h"
#include "base/presence.h"
#include "format/delta_tensors.h"
#include "format/digest.h"
#include "format/message.h"
#include "format/served_files.h"
#include "format/shards.h"

namespace df {
namespace {

Result<std::string> Required(const std::map<std::string, std::string>& metadata, const std::string& key) {
  const auto at = metadata.find(key);
  if (at == metadata.end()) return Corrupt("__metadata__ lacks \"" + key + "\": this is no delta of deltafold");
  return at->second;
}

// "1" or "2". A version stands for all parts it has, used or not.
Result<int> ReadFormatVersion(const std::map<std::string, std::string>& metadata) {
  DF_ASSIGN_OR_RETURN(const std::string value, Required(metadata, "format_version"));
  for (int version = 1; version <= internal::kNewestFormatVersion; ++version) {
    if (value == std::to_string(version)) return version;
  }
  return Unsupported("__metadata__ \"format_version\" is " + Quoted(value) + ", this version reads \"1\" to \"" +
                     std::to_string(internal::kNewestFormatVersion) + "\" only");
}

// Metadata values that have one meaning only.
Status CheckFixedMetadata(const std::map<std::string, std::string>& metadata) {
  struct Fixed {
    const char* key;
    std::string_view value;
  };
  for (const Fixed& fixed : {Fixed{"format", "deltafold"}, Fixed{"base_quant", "none"}, Fixed{"sign_zero", "+1"}}) {
    DF_ASSIGN_OR_RETURN(const std::string value, Required(metadata, fixed.key));
    if (value == fixed.value) continue;
    return Unsupported("__metadata__ \"" + std::string(fixed.key) + "\" is " + Quoted(value) +
                       ", this version reads \"" + std::string(fixed.value) + "\" only");
  }
  return Status::Ok();
}

Result<std::vector<std::shared_ptr<const SafetensorsFile>>> OpenDeltaFiles(const std::string& directory) {
  const std::string single = directory + "/delta_model.safetensors";
  const std::string index = single + ".index.json";
  DF_ASSIGN_OR_RETURN(const bool has_single, HasFile(single));
  DF_ASSIGN_OR_RETURN(const bool has_index, HasFile(index));
  if (!has_single && has_index) return OpenShards(directory, index);
  DF_ASSIGN_OR_RETURN(std::shared_ptr<const SafetensorsFile> file, SafetensorsFile::Open(single));
  return std::vector{std::move(file)};
}

Status CheckOneFileDigest(const std::string& directory, const std::string& name, const std::string& expected) {
  const Result<std::string> content = ReadFileBounded(directory + "/" + name, kMaxSideFileBytes);
  if (!content.ok()) return Corrupt("the delta was written with " + name + ": " + content.status().message());
  Digest digest;
  digest.AddText(*content);
  if (digest.Hex() == expected) return Status::Ok();
  return Corrupt(directory + "/" + name + " has digest " + digest.Hex() + ", the delta was written with " + expected);
}

std::vector<Bytes> DataOf(const std::map<std::string, StoredTensor, std::less<>>& tensors) {
  std::vector<Bytes> data;
  for (const auto& [name, tensor] : tensors) data.push_back(tensor.view.bytes);
  return data;
}

// Of any matrix of the model.
size_t LongestSide(const ModelConfig& config) {
  return std::max({config.vocab, config.d_model, config.d_ff, config.n_heads * config.head_dim});
}

}  // namespace

namespace internal {

bool IsPlainFileName(std::string_view name) {
  const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && c != 0x7F && c != '/' && c != '\\';
  });
  return plain && !name.empty() && name.size() <= 255 && name.front() != '.';
}

bool IsSideFileName(std::string_view name) {
  const size_t folder_bytes = kTemplateFolder.size() + 1;
  if (name.starts_with(kTemplateFolder) && name.ends_with(kTemplateExtension) && name.size() > folder_bytes &&
      name[folder_bytes - 1] == '/') {
    name.remove_prefix(folder_bytes);
  }
  return IsPlainFileName(name);
}

Result<DeltaMetadata> ReadDeltaMetadata(const std::map<std::string, std::string>& metadata) {
  DeltaMetadata read;
  DF_ASSIGN_OR_RETURN(read.format_version, ReadFormatVersion(metadata));
  DF_RETURN_IF_ERROR(CheckFixedMetadata(metadata));
  DF_ASSIGN_OR_RETURN(read.base_fingerprint, Required(metadata, "base_fingerprint"));
  DF_ASSIGN_OR_RETURN(read.content_digest, Required(metadata, "content_digest"));
  for (const std::string& digest : {read.base_fingerprint, read.content_digest}) {
    if (!IsDigest(digest)) return Corrupt("__metadata__ has " + Quoted(digest) + " in place of 32 hex digits");
  }
  constexpr std::array<std::string_view, 6> kKnown = {"format",    "format_version",   "base_quant",
                                                      "sign_zero", "base_fingerprint", "content_digest"};
  for (const auto& [key, value] : metadata) {
    if (std::find(kKnown.begin(), kKnown.end(), key) != kKnown.end()) continue;
    if (!key.starts_with(kFileDigestPrefix)) {
      return Unsupported("__metadata__ key " + Quoted(key) + " is unknown to format version " +
                         std::to_string(read.format_version));
    }
    const std::string name = key.substr(kFileDigestPrefix.size());
    if (!IsSideFileName(name) || !IsDigest(value)) return Corrupt("__metadata__ has the unsound entry " + Quoted(key));
    read.file_digests.emplace(name, value);
  }
  return read;
}

}  // namespace internal

Result<std::shared_ptr<const DeltaDirectory>> DeltaDirectory::Open(const std::string& directory, Scales scales) {
  std::shared_ptr<DeltaDirectory> delta(new DeltaDirectory);
  delta->directory_ = directory;
  DF_ASSIGN_OR_RETURN(delta->delta_config_, ReadJsonFile(directory + "/delta_config.json"));
  if (!delta->delta_config_.is_object()) return Corrupt(directory + "/delta_config.json must be a JSON object");
  DF_ASSIGN_OR_RETURN(delta->config_, LoadModelConfig(directory));
  DF_ASSIGN_OR_RETURN(delta->files_, OpenDeltaFiles(directory));
  for (const auto& file : delta->files_) {
    if (file->metadata() != delta->files_.front()->metadata()) {
      return Corrupt(file->file().path() + " has other __metadata__ than " + delta->files_.front()->file().path());
    }
    for (const NamedTensor& tensor : file->tensors()) {
      delta->tensors_.emplace(tensor.name, StoredTensor{tensor.view, &file->file()});
    }
  }
  Result<DeltaMetadata> metadata = internal::ReadDeltaMetadata(delta->files_.front()->metadata());
  if (!metadata.ok()) return metadata.status().Annotate(delta->files_.front()->file().path());
  delta->metadata_ = *std::move(metadata);
  Result<std::vector<std::string>> weights =
      internal::CheckDeltaTensors(delta->tensors_, delta->metadata_.format_version, LongestSide(delta->config_));
  Status finite = weights.ok() && scales == Scales::kCheck ? internal::CheckScales(delta->tensors_) : Status::Ok();
  DF_RETURN_IF_ERROR(delta->CheckIntact());
  if (!weights.ok()) return weights.status().Annotate(directory);
  if (!finite.ok()) return finite.Annotate(directory);
  delta->weights_ = *std::move(weights);
  return std::shared_ptr<const DeltaDirectory>(std::move(delta));
}

Result<LinearDelta> DeltaDirectory::Linear(std::string_view weight, ShapeOfWeight base, size_t d_out) const {
  Result<LinearDelta> delta = internal::LinearOf(tensors_, weight, base, d_out);
  if (!delta.ok()) return delta.status().Annotate(directory_);
  return delta;
}

Result<std::optional<TensorView>> DeltaDirectory::Vector(std::string_view name, size_t size) const {
  Result<std::optional<TensorView>> vector = internal::VectorOf(tensors_, name, size);
  if (!vector.ok()) return vector.status().Annotate(directory_);
  return vector;
}

DeltaDirectory::ContentCheck::ContentCheck(const DeltaDirectory& delta)
    : delta_(delta), next_(delta.tensors_.begin()), kept_(next_), ahead_(DataOf(delta.tensors_)) {}

void DeltaDirectory::ContentCheck::AddNext() {
  ahead_.Next();
  digest_.AddTensor(next_->first, next_->second.view, nullptr);
  if (scales_.ok()) scales_ = internal::CheckScale(next_->first, next_->second.view);
  ++next_;
}

void DeltaDirectory::ContentCheck::ReadUpTo(std::string_view weight) {
  // A weight's tensors are called after it: "W", "W.sign" ...
  while (next_ != delta_.tensors_.end() && (next_->first <= weight || next_->first.starts_with(weight))) AddNext();
}

void DeltaDirectory::ContentCheck::DropBehind() {
  for (; kept_ != next_; ++kept_) kept_->second.file->DropPages(kept_->second.view.bytes);
}

Status DeltaDirectory::ContentCheck::Finish() {
  while (next_ != delta_.tensors_.end()) {
    AddNext();
    DropBehind();
  }
  const std::string found = digest_.Hex();
  DF_RETURN_IF_ERROR(delta_.CheckIntact());
  if (!scales_.ok()) return scales_.Annotate(delta_.directory_);
  const std::string& expected = delta_.metadata_.content_digest;
  if (found == expected) return Status::Ok();
  return Corrupt(delta_.directory_ + ": the tensors have digest " + found + ", the delta was written with " + expected +
                 ": a file was damaged or changed");
}

Status DeltaDirectory::VerifyDigest() const {
  DF_RETURN_IF_ERROR(ContentCheck(*this).Finish());
  return VerifySideFiles();
}

Status DeltaDirectory::VerifySideFiles() const {
  for (const auto& [name, digest] : metadata_.file_digests) {
    DF_RETURN_IF_ERROR(CheckOneFileDigest(directory_, name, digest));
  }
  return Status::Ok();
}

Result<std::string> DeltaDirectory::Generation() const {
  Digest digest;
  digest.AddText(metadata_.base_fingerprint);
  digest.AddText(metadata_.content_digest);
  DF_RETURN_IF_ERROR(AddServedFiles(directory_, digest).status());
  return digest.Hex();
}

Status DeltaDirectory::CheckIntact() const {
  for (const auto& file : files_) DF_RETURN_IF_ERROR(file->file().CheckIntact());
  return Status::Ok();
}

uint64_t DeltaDirectory::stored_bytes() const {
  uint64_t sum = 0;
  for (const auto& file : files_) sum += file->file().bytes().size();
  return sum;
}

}  // namespace df
