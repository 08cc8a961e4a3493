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

Result<bool> AddServedFiles(const std::string& directory, Digest& digest) {
  bool has_any = false;
  for (const std::string_view name : kServedFiles) {
    const Result<std::string> content = ReadFileBounded(directory + "/" + std::string(name), kMaxSideFileBytes);
    if (!content.ok() && content.status().code() == StatusCode::kNotFound) continue;
    if (!content.ok()) return content.status();
    digest.AddText(name);
    digest.AddText(*content);
    has_any = true;
  }
  DF_ASSIGN_OR_RETURN(const auto templates,
                      ListFiles(directory + "/" + std::string(kTemplateFolder), kTemplateExtension, kMaxTemplateFiles));
  for (const std::string& name : templates) {
    const std::string path = std::string(kTemplateFolder) + "/" + name;
    DF_ASSIGN_OR_RETURN(const std::string content, ReadFileBounded(directory + "/" + path, kMaxSideFileBytes));
    digest.AddText(path);
    digest.AddText(content);
  }
  return has_any || !templates.empty();
}

}  // namespace df
