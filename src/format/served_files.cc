#include "format/served_files.h"

#include <array>
#include <string_view>

#include "base/atomic_file.h"
#include "base/presence.h"
#include "format/delta_dir.h"

namespace df {
namespace {

constexpr std::array<std::string_view, 5> kServedFiles = {"config.json", "generation_config.json", "tokenizer.json",
                                                          "tokenizer_config.json", "chat_template.jinja"};

}  // namespace

Result<std::vector<std::string>> ListServedFiles(const std::string& directory) {
  std::vector<std::string> names;
  for (const std::string_view name : kServedFiles) {
    DF_ASSIGN_OR_RETURN(const bool is_there, HasFile(directory + "/" + std::string(name)));
    if (is_there) names.emplace_back(name);
  }
  DF_ASSIGN_OR_RETURN(const auto templates,
                      ListFiles(directory + "/" + std::string(kTemplateFolder), kTemplateExtension, kMaxTemplateFiles));
  for (const std::string& name : templates) names.push_back(std::string(kTemplateFolder) + "/" + name);
  return names;
}

Result<bool> AddServedFiles(const std::string& directory, Digest& digest) {
  DF_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListServedFiles(directory));
  for (const std::string& name : names) {
    DF_ASSIGN_OR_RETURN(const std::string content, ReadFileBounded(directory + "/" + name, kMaxSideFileBytes));
    digest.AddText(name);
    digest.AddText(content);
  }
  return !names.empty();
}

}  // namespace df
