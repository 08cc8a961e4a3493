// A directory for the time of a measurement.
#ifndef DELTAFOLD_TOOLS_TEMPORARY_DIRECTORY_H_
#define DELTAFOLD_TOOLS_TEMPORARY_DIRECTORY_H_

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <utility>

#include "base/status.h"

namespace df::tools {

// Removed with all that is in it, unless it is released.
class TemporaryDirectory {
 public:
  // In `parent`, which is there; "" = the system's. kIo.
  static Result<TemporaryDirectory> Make(const std::string& parent) {
    std::error_code error;
    const std::string base = parent.empty() ? std::filesystem::temp_directory_path(error).string() : parent;
    std::string pattern = base + "/deltafold-bench-XXXXXX";
    if (mkdtemp(pattern.data()) == nullptr) return IoError("cannot make a directory in " + base, errno);
    return TemporaryDirectory(std::move(pattern));
  }
  TemporaryDirectory(TemporaryDirectory&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  TemporaryDirectory& operator=(TemporaryDirectory&&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }
  std::string Release() { return std::exchange(path_, ""); }

 private:
  explicit TemporaryDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_TEMPORARY_DIRECTORY_H_
