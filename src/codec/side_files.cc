#include "codec/side_files.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/atomic_file.h"
#include "base/mapped_file.h"

namespace df {
namespace {

// What a served variant may have of its own.
constexpr std::array<std::string_view, 4> kVariantFiles = {"tokenizer.json", "tokenizer_config.json",
                                                           "chat_template.jinja", "generation_config.json"};
// What other tools want to find in a full checkpoint.
constexpr std::array<std::string_view, 9> kCheckpointFiles = {
    "tokenizer.json",          "tokenizer_config.json", "chat_template.jinja", "generation_config.json",
    "special_tokens_map.json", "added_tokens.json",     "vocab.json",          "merges.txt",
    "tokenizer.model"};

// Of at most kMaxSideFileBytes: a sparse file of a terabyte costs nothing to make and would fill the disk.
Result<std::unique_ptr<MappedFile>> OpenBounded(const std::string& path) {
  DF_ASSIGN_OR_RETURN(auto file, MappedFile::Open(path));
  if (file->bytes().size() <= kMaxSideFileBytes) return file;
  return ResourceExhausted(path + " has " + std::to_string(file->bytes().size()) + " bytes, at most " +
                           std::to_string(kMaxSideFileBytes) + " are accepted");
}

// Null when there is no such file.
Result<std::unique_ptr<MappedFile>> OpenIfThere(const std::string& directory, std::string_view name) {
  Result<std::unique_ptr<MappedFile>> file = OpenBounded(directory + "/" + std::string(name));
  if (!file.ok() && file.status().code() == StatusCode::kNotFound) return std::unique_ptr<MappedFile>();
  return file;
}

}  // namespace

Result<std::vector<std::string>> CopyChangedFiles(const std::string& base_directory,
                                                  const std::string& fine_tune_directory, DeltaWriter& writer) {
  std::vector<std::string> added = {"config.json"};
  DF_ASSIGN_OR_RETURN(const auto config, OpenBounded(fine_tune_directory + "/config.json"));
  DF_RETURN_IF_ERROR(writer.AddFile("config.json", AsText(config->bytes())));
  for (const std::string_view name : kVariantFiles) {
    DF_ASSIGN_OR_RETURN(const auto fine_tune, OpenIfThere(fine_tune_directory, name));
    if (fine_tune == nullptr) continue;
    DF_ASSIGN_OR_RETURN(const auto base, OpenIfThere(base_directory, name));
    if (base != nullptr && std::ranges::equal(base->bytes(), fine_tune->bytes())) continue;
    DF_RETURN_IF_ERROR(writer.AddFile(std::string(name), AsText(fine_tune->bytes())));
    DF_RETURN_IF_ERROR(fine_tune->CheckIntact());
    added.emplace_back(name);
  }
  return added;
}

Status CopyTextFiles(const std::string& base_directory, const std::string& variant_directory,
                     const std::string& target) {
  for (const std::string_view name : kCheckpointFiles) {
    DF_ASSIGN_OR_RETURN(auto file, OpenIfThere(variant_directory, name));
    if (file == nullptr) {
      DF_ASSIGN_OR_RETURN(file, OpenIfThere(base_directory, name));
    }
    if (file == nullptr) continue;
    DF_RETURN_IF_ERROR(WriteFileAtomically(target + "/" + std::string(name), AsText(file->bytes())));
    DF_RETURN_IF_ERROR(file->CheckIntact());
  }
  return Status::Ok();
}

}  // namespace df
