#include "format/variant_kind.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/presence.h"

namespace df {

Result<std::vector<std::string>> NamedAdapters(const std::string& directory) {
  namespace fs = std::filesystem;
  std::vector<std::string> folders;
  std::error_code error;
  fs::directory_iterator entries(directory, error);
  const bool is_absent = error.value() == ENOENT || error.value() == ENOTDIR;
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string folder = entries->path().string();
    DF_ASSIGN_OR_RETURN(const bool is_adapter, HasFile(folder + "/adapter_config.json"));
    if (is_adapter) folders.push_back(folder);
  }
  if (error && !is_absent) return IoError("cannot list " + directory, error.value());
  std::sort(folders.begin(), folders.end());
  return folders;
}

Result<DirectoryKind> KindOfDirectory(const std::string& directory) {
  for (const char* name : {"/delta_config.json", "/delta_model.safetensors", "/delta_model.safetensors.index.json"}) {
    DF_ASSIGN_OR_RETURN(const bool is_delta, HasFile(directory + name));
    if (is_delta) return DirectoryKind::kDelta;
  }
  DF_ASSIGN_OR_RETURN(const bool is_adapter, HasFile(directory + "/adapter_config.json"));
  if (is_adapter) return DirectoryKind::kAdapter;
  DF_ASSIGN_OR_RETURN(const bool is_model, HasFile(directory + "/config.json"));
  if (is_model) return DirectoryKind::kModel;
  DF_ASSIGN_OR_RETURN(const std::vector<std::string> folders, NamedAdapters(directory));
  return folders.empty() ? DirectoryKind::kNothing : DirectoryKind::kAdapter;
}

}  // namespace df
