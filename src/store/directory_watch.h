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

 private:
  struct Seen {
    uint64_t stamp = 0;     // of the last look
    uint64_t reported = 0;  // of the last change that came out; 0 = none
    bool missed = false;    // by the last look
  };
  using SeenMap = std::map<std::string, Seen>;

  Result<std::map<std::string, std::optional<uint64_t>>> Stamps() const;

  const std::string directory_;
  SeenMap seen_;
};

}  // namespace df

#endif  // DELTAFOLD_STORE_DIRECTORY_WATCH_H_
