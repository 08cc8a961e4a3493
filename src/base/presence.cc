#include "base/presence.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

namespace df {
namespace {

namespace fs = std::filesystem;

bool IsAbsence(int error) { return error == ENOENT || error == ENOTDIR; }

}  // namespace

Status AbsenceOf(const std::string& path) {
  std::error_code error;
  const fs::path target = fs::read_symlink(path, error);
  if (error) return NotFound("no file " + path);
  return Corrupt(path + " is a link to " + target.string() + ", which is not there (an unfinished download?)");
}

Status NoRegularFile(const std::string& path) { return FailedPrecondition(path + " is not a regular file"); }

Result<bool> HasFile(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) == 0) {
    if (!S_ISREG(info.st_mode)) return NoRegularFile(path);
    return true;
  }
  if (!IsAbsence(errno)) return IoError("cannot look at " + path, errno);
  const Status absence = AbsenceOf(path);
  if (absence.code() == StatusCode::kNotFound) return false;
  return absence;
}

Result<std::vector<std::string>> ListFiles(const std::string& directory, std::string_view extension, size_t max_files) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator entries(directory, error);
  if (error && IsAbsence(error.value())) {
    // "x/y" where x is a file is absent as well; a file or a link to nothing in the directory's place is not.
    struct stat info = {};
    if (lstat(directory.c_str(), &info) != 0) return names;
    if (S_ISLNK(info.st_mode) && stat(directory.c_str(), &info) != 0) return AbsenceOf(directory);
    return FailedPrecondition(directory + " is not a directory");
  }
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    std::string name = entries->path().filename().string();
    if (!name.ends_with(extension)) continue;
    if (names.size() == max_files) {
      return ResourceExhausted(directory + " holds more than " + std::to_string(max_files) + " files *" +
                               std::string(extension));
    }
    names.push_back(std::move(name));
  }
  if (error) return IoError("cannot list " + directory, error.value());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace df
