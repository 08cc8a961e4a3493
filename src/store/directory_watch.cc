#include "store/directory_watch.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "base/rng.h"
#include "format/variant_kind.h"

namespace df {
namespace {

namespace fs = std::filesystem;

// More than any variant has; what lies beyond is not looked at.
constexpr size_t kMaxFiles = 4096;

uint64_t Mix(uint64_t seed, uint64_t value) { return RandomBits(seed, value); }

// Which file stands at `path` and when it was written last. Times have the file system's resolution; the size and the
// file's number tell the rest.
uint64_t StampOf(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return 0;
  uint64_t stamp = Mix(static_cast<uint64_t>(info.st_dev), static_cast<uint64_t>(info.st_ino));
  stamp = Mix(stamp, static_cast<uint64_t>(info.st_size));
  stamp = Mix(stamp, static_cast<uint64_t>(info.st_mtim.tv_sec));
  return Mix(stamp, static_cast<uint64_t>(info.st_mtim.tv_nsec));
}

// Of a directory, links followed, with the files in it and one level further down; kNoVariant when it holds none (yet),
// nothing when that cannot be told now.
constexpr uint64_t kNoVariant = 0;
std::optional<uint64_t> StampOfVariant(const std::string& directory) {
  const Result<DirectoryKind> kind = KindOfDirectory(directory);
  if (!kind.ok()) return std::nullopt;
  if (*kind != DirectoryKind::kDelta && *kind != DirectoryKind::kAdapter) return kNoVariant;
  std::vector<std::string> paths;
  std::error_code error;
  for (auto at = fs::recursive_directory_iterator(directory, error);
       !error && at != fs::recursive_directory_iterator() && paths.size() < kMaxFiles; at.increment(error)) {
    if (at.depth() >= 1) at.disable_recursion_pending();
    paths.push_back(at->path().string());
  }
  if (error) return std::nullopt;
  std::sort(paths.begin(), paths.end());
  uint64_t stamp = StampOf(directory);
  for (const std::string& path : paths) {
    for (const char c : path) stamp = Mix(stamp, static_cast<unsigned char>(c));
    stamp = Mix(stamp, StampOf(path));
  }
  return stamp | 1;  // kNoVariant is taken
}

// Whether an error says that nothing is there.
bool IsAbsence(const std::error_code& error) {
  return !error || error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
}

}  // namespace

// By name, of all that may be variants: those of which nothing can be told are there without a stamp.
Result<std::map<std::string, std::optional<uint64_t>>> DirectoryWatch::Stamps() const {
  std::error_code error;
  fs::directory_iterator entries(directory_, error);
  std::map<std::string, std::optional<uint64_t>> found;
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (name.starts_with(".")) continue;
    std::error_code hidden;
    const bool is_directory = entries->is_directory(hidden);
    if (!is_directory && IsAbsence(hidden)) continue;
    const std::optional<uint64_t> stamp = is_directory ? StampOfVariant(directory_ + "/" + name) : std::nullopt;
    if (stamp != kNoVariant) found.emplace(name, stamp);
  }
  if (error) return IoError("cannot read directory " + directory_, error.value());
  return found;
}

Result<std::vector<WatchedChange>> DirectoryWatch::Look() {
  DF_ASSIGN_OR_RETURN(const auto found, Stamps());
  SeenMap seen_now = seen_;
  std::vector<WatchedChange> changes;
  for (auto at = seen_now.begin(); at != seen_now.end();) {
    const bool is_there = found.contains(at->first);
    if (const bool missed_before = std::exchange(at->second.missed, !is_there); is_there || !missed_before) {
      ++at;
      continue;
    }
    if (at->second.reported != 0)
      changes.push_back({WatchedChange::Kind::kGone, at->first, directory_ + "/" + at->first});
    at = seen_now.erase(at);
  }
  for (const auto& [name, stamp] : found) {
    if (!stamp) continue;
    Seen& seen = seen_now[name];
    const bool stands_still = seen.stamp == *stamp;
    seen.stamp = *stamp;
    if (!stands_still || seen.reported == *stamp) continue;
    const auto kind = seen.reported == 0 ? WatchedChange::Kind::kAppeared : WatchedChange::Kind::kReplaced;
    seen.reported = *stamp;
    changes.push_back({kind, name, directory_ + "/" + name});
  }
  seen_.swap(seen_now);
  return changes;
}

}  // namespace df
