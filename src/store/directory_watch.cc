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

// Of a directory, links followed, with the files in it and one level further down. An error says why there is none:
// kNotFound that it holds no variant (yet), any other that it cannot be told now.
Result<uint64_t> StampOfVariant(const std::string& directory) {
  DF_ASSIGN_OR_RETURN(const DirectoryKind kind, KindOfDirectory(directory));
  if (kind == DirectoryKind::kModel) {
    return NotFound("a full model, not a variant: make a delta of it first (deltafold compress)");
  }
  if (kind == DirectoryKind::kNothing) return NotFound("neither delta_config.json nor adapter_config.json is there");
  std::vector<std::string> paths;
  std::error_code error;
  for (auto at = fs::recursive_directory_iterator(directory, error);
       !error && at != fs::recursive_directory_iterator() && paths.size() < kMaxFiles; at.increment(error)) {
    if (at.depth() >= 1) at.disable_recursion_pending();
    paths.push_back(at->path().string());
  }
  if (error) return IoError("it cannot be listed", error.value());
  std::sort(paths.begin(), paths.end());
  uint64_t stamp = StampOf(directory);
  for (const std::string& path : paths) {
    for (const char c : path) stamp = Mix(stamp, static_cast<unsigned char>(c));
    stamp = Mix(stamp, StampOf(path));
  }
  return stamp;
}

}  // namespace

Result<DirectoryWatch::Entries> DirectoryWatch::ListEntries() const {
  std::error_code error;
  fs::directory_iterator entries(directory_, error);
  Entries found;
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (name.starts_with(".")) continue;
    const std::string path = directory_ + "/" + name;
    std::error_code hidden;
    const bool is_directory = entries->is_directory(hidden);
    const bool is_absent = hidden == std::errc::no_such_file_or_directory || hidden == std::errc::not_a_directory;
    std::string why;
    if (is_directory) {
      const Result<uint64_t> stamp = StampOfVariant(path);
      if (stamp.ok()) {
        found.variants.emplace(name, *stamp);
        continue;
      }
      why = stamp.status().message();
      if (stamp.status().code() != StatusCode::kNotFound) found.variants.emplace(name, std::nullopt);
    } else if (hidden && !is_absent) {
      why = "it cannot be looked at: " + hidden.message();
      found.variants.emplace(name, std::nullopt);
    } else {
      why = hidden ? "a link to nothing" : "a file, not a directory";
    }
    found.unused.emplace(name, Unused{.why = std::move(why), .stamp = StampOf(path)});
  }
  if (error) return IoError("cannot read directory " + directory_, error.value());
  return found;
}

void DirectoryWatch::CountUnused(std::map<std::string, Unused> found) {
  std::vector<WatchedMisfit> misfits;
  for (auto& [name, now] : found) {
    const auto before = unused_.find(name);
    const bool is_same = before != unused_.end() && before->second.why == now.why && before->second.stamp == now.stamp;
    now.n_looks = is_same ? before->second.n_looks + 1 : 1;
    if (now.n_looks == kLooksToTell) misfits.push_back({directory_ + "/" + name, now.why});
  }
  unused_.swap(found);
  misfits_.swap(misfits);
}

Result<std::vector<WatchedChange>> DirectoryWatch::Look() {
  misfits_.clear();
  DF_ASSIGN_OR_RETURN(Entries entries, ListEntries());
  const auto& found = entries.variants;
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
  CountUnused(std::move(entries.unused));
  seen_.swap(seen_now);
  return changes;
}

}  // namespace df
