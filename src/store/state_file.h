// Registrations made at run time, kept over restarts: a file of JSON lines, each appended and fsynced before the change
// it tells of is acknowledged (docs/store.md, "The state file"). A process killed at any moment leaves a file from
// which everything acknowledged comes back; a last line cut short is what was not.
#ifndef DELTAFOLD_STORE_STATE_FILE_H_
#define DELTAFOLD_STORE_STATE_FILE_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace df {

struct StoredRegistration {
  std::string directory, root, parent;  // as RegisterOptions
  bool operator==(const StoredRegistration&) const = default;
};

// What the lines add up to.
struct StoredState {
  std::map<std::string, StoredRegistration> registrations;  // by name
  std::map<std::string, bool> pins;  // by name, whoever registered it: true = pinned, false = unpinned
};

// Thread-compatible.
class StateFile {
 public:
  // Reads `path` (an absent or empty one is an empty state; a link is followed), rewrites it in its shortest form and
  // keeps it open and locked. Lines that cannot be read are left out; `warnings` says which and why. So it does when a
  // file that is there could not be rewritten (a full disk): it is used as it is. The only errors
  // are kFailedPrecondition (another process has it; no regular file; not ours, which is left as it is), kUnsupported
  // (a later version), kResourceExhausted (over 64 MB), kUnavailable (just replaced) and kIo.
  static Result<std::unique_ptr<StateFile>> Open(const std::string& path, std::vector<std::string>& warnings);
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  const StoredState& state() const { return state_; }

  // On disk when they return ok; no change when they do not. Once a failed write could not be taken back, every later
  // call says so (kIo).
  Status Register(const std::string& name, const StoredRegistration& registration,
                  bool pinned = false);    // both or none
  Status Retire(const std::string& name);  // its pin goes with it
  Status SetPinned(const std::string& name, bool pinned);

 private:
  explicit StateFile(std::string path) : path_(std::move(path)) {}
  Status Append(const std::string& lines);
  Status Rewrite();
  Status GoOnUnshortened(const std::string& content, const Status& why);
  Status MakeNamed();
  void CompactWhenLong();

  const std::string path_;  // links resolved
  StoredState state_;
  int fd_ = -1;
  uint64_t size_bytes_ = 0, compact_bytes_ = 0;  // now, and after the last rewriting
  bool is_named_ = true;                         // the last rewriting is durable under its name
  Status broken_;
};

}  // namespace df

#endif  // DELTAFOLD_STORE_STATE_FILE_H_
