#include "format/variant_kind.h"

#include <filesystem>

#include "base/presence.h"

namespace df {

Result<DirectoryKind> KindOfDirectory(const std::string& directory) {
  for (const char* name : {"/delta_config.json", "/delta_model.safetensors", "/delta_model.safetensors.index.json"}) {
    DF_ASSIGN_OR_RETURN(const bool is_delta, HasFile(directory + name));
    if (is_delta) return DirectoryKind::kDelta;
  }
  DF_ASSIGN_OR_RETURN(const bool is_adapter, HasFile(directory + "/adapter_config.json"));
  if (is_adapter) return DirectoryKind::kAdapter;
  DF_ASSIGN_OR_RETURN(const bool is_model, HasFile(directory + "/config.json"));
  if (is_model) return DirectoryKind::kModel;
  std::error_code error;  // an adapter saved under its own name lies one folder further down
  for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(directory, error)) {
    DF_ASSIGN_OR_RETURN(const bool inside, HasFile(entry.path().string() + "/adapter_config.json"));
    if (inside) return DirectoryKind::kAdapter;
  }
  return DirectoryKind::kNothing;
}

}  // namespace df
