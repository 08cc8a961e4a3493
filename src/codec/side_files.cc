#include "codec/side_files.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <string_view>

#include "base/atomic_file.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "base/presence.h"

namespace df {
namespace {

namespace fs = std::filesystem;

// What a served variant may have of its own.
constexpr std::array<std::string_view, 3> kVariantFiles = {"tokenizer.json", "tokenizer_config.json",
                                                           "generation_config.json"};
// What other tools want to find in a full checkpoint.
constexpr std::array<std::string_view, 8> kCheckpointFiles = {"tokenizer.json",
                                                              "tokenizer_config.json",
                                                              "generation_config.json",
                                                              "special_tokens_map.json",
                                                              "added_tokens.json",
                                                              "vocab.json",
                                                              "merges.txt",
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

// Chat templates are read from files all together or not at all (text/model_text.h), so they are one thing here.
using TemplateFiles = std::map<std::string, std::unique_ptr<MappedFile>>;

Result<TemplateFiles> OpenTemplates(const std::string& directory) {
  std::vector<std::string> names = {"chat_template.jinja"};
  const std::string folder(kTemplateFolder);
  DF_ASSIGN_OR_RETURN(const auto further, ListFiles(directory + "/" + folder, kTemplateExtension, kMaxTemplateFiles));
  for (const std::string& name : further) names.push_back(folder + "/" + name);
  TemplateFiles files;
  for (const std::string& name : names) {
    DF_ASSIGN_OR_RETURN(auto file, OpenIfThere(directory, name));
    if (file != nullptr) files.emplace(name, std::move(file));
  }
  return files;
}

bool AreEqual(const TemplateFiles& a, const TemplateFiles& b) {
  return std::ranges::equal(a, b, [](const auto& x, const auto& y) {
    return x.first == y.first && std::ranges::equal(x.second->bytes(), y.second->bytes());
  });
}

Result<bool> HasTemplateInConfig(const std::string& directory) {
  DF_ASSIGN_OR_RETURN(const auto config, OpenIfThere(directory, "tokenizer_config.json"));
  if (config == nullptr) return false;
  const Result<Json> json = ParseJson(AsText(config->bytes()), {.max_bytes = kMaxSideFileBytes});
  if (!json.ok()) return json.status().Annotate(config->path());
  return JsonMemberOrNull(*json, "chat_template") != nullptr;
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
  DF_ASSIGN_OR_RETURN(const TemplateFiles templates, OpenTemplates(fine_tune_directory));
  DF_ASSIGN_OR_RETURN(const TemplateFiles base_templates, OpenTemplates(base_directory));
  if (AreEqual(templates, base_templates)) return added;
  for (const auto& [name, file] : templates) {
    DF_RETURN_IF_ERROR(writer.AddFile(name, AsText(file->bytes())));
    DF_RETURN_IF_ERROR(file->CheckIntact());
    added.push_back(name);
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
  DF_ASSIGN_OR_RETURN(TemplateFiles templates, OpenTemplates(variant_directory));
  if (templates.empty()) {
    // Files would stand in for what the variant's own config holds.
    DF_ASSIGN_OR_RETURN(const bool in_config, HasTemplateInConfig(variant_directory));
    if (in_config) return Status::Ok();
    DF_ASSIGN_OR_RETURN(templates, OpenTemplates(base_directory));
  }
  for (const auto& [name, file] : templates) {
    const fs::path path = fs::path(target) / name;
    std::error_code error;
    fs::create_directories(path.parent_path(), error);
    if (error) return IoError("cannot create directory " + path.parent_path().string(), error.value());
    DF_RETURN_IF_ERROR(WriteFileAtomically(path.string(), AsText(file->bytes())));
    DF_RETURN_IF_ERROR(file->CheckIntact());
  }
  return Status::Ok();
}

}  // namespace df
