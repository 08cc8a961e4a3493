// A directory whose sub-directories are variants, looked at now and then (no notification reaches every file system).
// What changed since the last look comes out; nothing is opened but to be looked at.
#ifndef DELTAFOLD_STORE_DIRECTORY_WATCH_H_
#define DELTAFOLD_STORE_DIRECTORY_WATCH_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace df {

struct WatchedChange {
  enum class Kind { kAppeared, kReplaced, kGone };
  Kind kind = Kind::kAppeared;
  std::string name;       // of the sub-directory
  std::string directory;  // DIR/name
};

// What stands there and is no variant that could be taken.
struct WatchedMisfit {
  std::string directory;  // DIR/name
  std::string why;
};

// Thread-compatible.
class DirectoryWatch {
 public:
  explicit DirectoryWatch(std::string directory) : directory_(std::move(directory)) {}

  // A sub-directory (or link to one: "latest -> v2") appears when its configuration file is there and nothing in it has
  // changed between two looks, so that a half-written one is not taken; it is replaced when other files or another
  // directory stand there and have stood still for as long; it is gone when two looks find no variant in it: one may
  // fall between a removal and the renaming that follows. One that cannot be looked at (no permission, a link to
  // nothing in the place of its configuration, no descriptors left) is as it was. Names that begin with a dot are not
  // looked at. kIo, and any exception: nothing has changed then.
  Result<std::vector<WatchedChange>> Look();

  // What has stood there unused and unchanged for kLooksToTell looks by the last one: each once, and again when it or
  // the reason changes. Longer than it takes to copy a variant, whose configuration may come last.
  const std::vector<WatchedMisfit>& misfits() const { return misfits_; }
  static constexpr uint64_t kLooksToTell = 10;

 private:
  struct Seen {
    uint64_t stamp = 0;     // of the last look
    uint64_t reported = 0;  // of the last change that came out; 0 = none
    bool missed = false;    // by the last look
  };
  using SeenMap = std::map<std::string, Seen>;

  struct Unused {
    std::string why;
    uint64_t stamp = 0;
    uint64_t n_looks = 0;  // that found it so
  };
  struct Entries {
    std::map<std::string, std::optional<uint64_t>> variants;  // without a stamp where it cannot be told now
    std::map<std::string, Unused> unused;
  };

  Result<Entries> ListEntries() const;
  void CountUnused(std::map<std::string, Unused> found);

  const std::string directory_;
  SeenMap seen_;
  std::map<std::string, Unused> unused_;
  std::vector<WatchedMisfit> misfits_;
};

}  // namespace df

#endif  // DELTAFOLD_STORE_DIRECTORY_WATCH_H_
