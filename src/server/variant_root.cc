#include "server/variant_root.h"

#include <sys/stat.h>

#include <filesystem>
#include <set>
#include <vector>

#include "format/hub_cache.h"

namespace df::server {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxPathBytes = 4096;  // PATH_MAX
// An adapter has a dozen files, a training folder with its checkpoints some hundreds.
constexpr size_t kMaxEntries = 4096;

Status Outside() {
  return FailedPrecondition("lora_path leads out of the directory that the server was given as --variant-root");
}

// Whether canonical `path` is `directory` or lies under it: by whole parts, so that /a/bc is not under /a/b.
bool IsUnder(const fs::path& path, const fs::path& directory) {
  const auto [end, rest] = std::mismatch(directory.begin(), directory.end(), path.begin(), path.end());
  return end == directory.end();
}

// The place a path names, links resolved. False where nothing is, or where links go in circles.
bool Canonical(const fs::path& path, fs::path& canonical) {
  std::error_code error;
  canonical = fs::canonical(path, error);
  return !error;
}

// One directory's entries: files are checked, folders go on the list.
Status CheckEntries(const fs::path& directory, const fs::path& root, std::vector<fs::path>& folders,
                    size_t& n_entries) {
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (++n_entries > kMaxEntries) {
      return FailedPrecondition("lora_path holds more than " + std::to_string(kMaxEntries) + " files");
    }
    fs::path target;
    if (!Canonical(it->path(), target)) continue;  // a link to nothing: whoever needs the file says so
    if (!IsUnder(target, root)) return Outside();
    struct stat status{};
    if (stat(target.c_str(), &status) != 0) continue;
    if (S_ISDIR(status.st_mode)) {
      folders.push_back(std::move(target));
    } else if (!S_ISREG(status.st_mode)) {
      return FailedPrecondition("lora_path holds something that is no regular file: " + it->path().filename().string());
    }
  }
  if (error) return FailedPrecondition("lora_path cannot be listed: " + error.message());
  return Status::Ok();
}

// Links may lead from folder to folder, under the root.
Status CheckTree(const fs::path& directory, const fs::path& root) {
  std::vector<fs::path> folders = {directory};
  std::set<fs::path> seen;
  size_t n_entries = 0;
  while (!folders.empty()) {
    const fs::path folder = std::move(folders.back());
    folders.pop_back();
    if (seen.insert(folder).second) DF_RETURN_IF_ERROR(CheckEntries(folder, root, folders, n_entries));
  }
  return Status::Ok();
}

}  // namespace

Result<VariantRoot> VariantRoot::Open(const std::string& directory) {
  fs::path canonical;
  if (!Canonical(directory, canonical)) return NotFound("variant-root " + directory + " does not exist");
  std::error_code error;
  if (!fs::is_directory(canonical, error)) {
    return FailedPrecondition("variant-root " + directory + " is not a directory");
  }
  const fs::path given = fs::absolute(directory, error);
  return VariantRoot(canonical.string(), error ? canonical.string() : given.string());
}

std::string VariantRoot::AsGiven(const std::string& given) const {
  const fs::path wanted = fs::path(given_) / given;
  std::error_code error;
  return fs::exists(wanted, error) ? wanted.string() : given;
}

Result<std::string> VariantRoot::Resolve(const std::string& given) const {
  if (given.empty() || given.size() > kMaxPathBytes || given.find('\0') != std::string::npos) {
    return InvalidArgument("lora_path must be a path of 1 to " + std::to_string(kMaxPathBytes) + " bytes without NUL");
  }
  const fs::path root(directory_);
  const fs::path wanted = root / given;  // `given` alone where it is absolute
  fs::path canonical;
  bool found = Canonical(wanted, canonical);
  if (!found) {
    const Result<std::string> snapshot = FindInHubCache(given);
    found = snapshot.ok() && Canonical(*snapshot, canonical) && IsUnder(canonical, root);
  }
  if (!found) {
    std::error_code error;
    const fs::path nearest = fs::weakly_canonical(wanted, error);
    if (error || !IsUnder(nearest, root)) return Outside();
    return NotFound("lora_path cannot be found under --variant-root, nor as a model of the local hub cache there");
  }
  if (!IsUnder(canonical, root)) return Outside();
  std::error_code error;
  if (!fs::is_directory(canonical, error)) return FailedPrecondition("lora_path is not a directory");
  DF_RETURN_IF_ERROR(CheckTree(canonical, root));
  return canonical.string();
}

}  // namespace df::server
