#include "cli/model_argument.h"

#include <filesystem>

#include "format/checkpoint.h"

namespace df::cli {

Result<ModelArgument> ResolveModel(const std::string& argument) {
  namespace fs = std::filesystem;
  DF_ASSIGN_OR_RETURN(std::string directory, ResolveModelDirectory(argument));
  std::error_code error;
  std::string name = argument;
  if (fs::is_directory(argument, error)) {
    fs::path path = fs::absolute(argument, error).lexically_normal();
    if (!path.has_filename()) path = path.parent_path();  // "dir/" ends in an empty name
    name = path.filename().string();
  }
  return ModelArgument{std::move(directory), std::move(name)};
}

}  // namespace df::cli
