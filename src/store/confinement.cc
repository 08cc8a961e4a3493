#include "store/confinement.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <vector>

namespace df {
namespace {

namespace fs = std::filesystem;

// An adapter has a dozen files, a training folder with its checkpoints some hundreds.
constexpr size_t kMaxEntries = 4096;

// One directory's entries: files are checked, folders go on the list.
Status CheckEntries(const std::string& directory, const Confinement& confinement, std::vector<std::string>& folders,
                    size_t& n_entries) {
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (++n_entries > kMaxEntries) {
      return FailedPrecondition(confinement.what + " holds more than " + std::to_string(kMaxEntries) + " files");
    }
    std::optional<std::string> target = CanonicalPlace(it->path().string());
    if (!target) continue;  // a link to nothing: whoever needs the file says so
    if (!IsUnder(*target, confinement.root)) return LeadsOut(confinement);
    struct stat status{};
    if (stat(target->c_str(), &status) != 0) continue;
    if (S_ISDIR(status.st_mode)) {
      folders.push_back(*std::move(target));
    } else if (!S_ISREG(status.st_mode)) {
      return FailedPrecondition(confinement.what +
                                " holds something that is no regular file: " + it->path().filename().string());
    }
  }
  if (error) return FailedPrecondition(confinement.what + " cannot be listed: " + error.message());
  return Status::Ok();
}

}  // namespace

std::optional<std::string> CanonicalPlace(const std::string& path) {
  std::error_code error;
  const fs::path canonical = fs::canonical(path, error);
  if (error) return std::nullopt;
  return canonical.string();
}

bool IsUnder(const std::string& path, const std::string& directory) {
  const fs::path inner(path), outer(directory);
  const auto [end, rest] = std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end());
  return end == outer.end();
}

Status LeadsOut(const Confinement& confinement) {
  return FailedPrecondition(confinement.what + " leads out of " + confinement.root_name);
}

Status CheckConfined(const std::string& directory, const Confinement& confinement) {
  if (!IsUnder(directory, confinement.root)) return LeadsOut(confinement);
  std::vector<std::string> folders = {directory};
  std::set<std::string> seen;
  size_t n_entries = 0;
  while (!folders.empty()) {
    const std::string folder = std::move(folders.back());
    folders.pop_back();
    if (!seen.insert(folder).second) continue;
    DF_RETURN_IF_ERROR(CheckEntries(folder, confinement, folders, n_entries));
  }
  return Status::Ok();
}

}  // namespace df
