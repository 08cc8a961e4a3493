// Many LoRA adapters in few slots: a byte budget is kept by merging a new adapter into the slot that is most like it,
// and every id that was added goes on being answered, by its slot ("K-Merge: Online Continual Merging of Adapters for
// On-device Large Language Models", 2025; `bounded` and the bounds on a member's error are ours). docs/merging.md tells
// what it is good for.
//
// Input: PEFT adapter directories; output: a directory with a PEFT adapter for each slot and pool.json, which says who
// is in it (docs/formats/pool.md). A change is one rename of pool.json, after the slot it speaks of is on disk: a
// process killed at any moment leaves the state before or after, and whoever opens the pool next removes what is
// neither. Called by `deltafold pool`, and by store/ for a server's adapters.
#ifndef DELTAFOLD_MERGE_ADAPTER_POOL_H_
#define DELTAFOLD_MERGE_ADAPTER_POOL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "merge/pool_state.h"

namespace df {

// How well the adapter in `directory` does on the probes of `id`, larger is better; nothing when it has no probes. An
// error ends the addition.
using PoolScore = std::function<Result<std::optional<double>>(const std::string& id, const std::string& directory)>;

struct PoolAdded {
  std::string slot;                      // that answers for the id now
  bool merged = false;                   // with others, else it has a slot of its own
  bool shared = false;                   // a slot had this very content in it: nothing was merged
  double similarity = 0;                 // to what it was merged with, or the most similar where that was asked
  double discarded_share = 0;            // energy that was cut off, of what the slot should have become
  std::vector<std::string> evicted_ids;  // answered no more: their slot gave room (PoolRefusal::kEvict)
};

struct PoolAddOptions {
  bool replace = false;   // an id that is there leaves its slot first
  std::string root = {};  // kept with the member: at most 4096 bytes of UTF-8, else ""
  PoolScore score = {};
  // How much a slot is used, in place of the uses that were counted: least first goes what is evicted.
  std::function<double(const PoolSlot& slot)> use_of = {};
  // The last word: called once the slot is in its `directory`, as it will be, and before pool.json speaks of it. An
  // error is Add's, and what was made is removed.
  std::function<Status(const PoolAdded& added, const std::string& directory, const PoolSlot& slot)> accept = {};
  // Called before each step that changes a file, with its name: what a test kills.
  std::function<void(std::string_view step)> on_step = {};
};

// How long to wait for a pool that another process has open.
struct PoolLockWait {
  int64_t most_ms = 0;
  // Called once, before the waiting begins, with who has it: "process 123", or "another process" where that is not
  // known.
  std::function<void(const std::string& holder)> on_wait = {};
};

// Thread-compatible; one process at a time changes a pool.
class AdapterPool {
 public:
  // Makes `directory`, or takes an empty one. The only errors are CheckPoolSettings', kFailedPrecondition (there is
  // something in it) and kIo.
  static Result<std::unique_ptr<AdapterPool>> Create(const std::string& directory, const PoolSettings& settings);
  // Locks it and removes what a stopped process left. The only errors are ReadState's and kFailedPrecondition (another
  // process has it, named, when the waiting is over).
  static Result<std::unique_ptr<AdapterPool>> Open(const std::string& directory, const PoolLockWait& wait = {});
  // Its state at this moment, without a lock. A slot whose adapter is not there with its bytes is marked as damaged.
  // The only errors are kNotFound (no pool), those of ParsePoolState, and kIo.
  static Result<PoolState> ReadState(const std::string& directory);
  ~AdapterPool();
  AdapterPool(const AdapterPool&) = delete;
  AdapterPool& operator=(const AdapterPool&) = delete;

  const PoolState& state() const { return state_; }
  const std::string& directory() const { return directory_; }
  // Of a slot's adapter.
  std::string DirectoryOf(const std::string& slot) const { return directory_ + "/slots/" + slot; }

  // Reads every slot: whose bytes have another digest is marked as damaged from now on.
  void CheckContents();

  // Takes the adapter in `adapter_directory` in under `id`: on disk when it returns. What is in a slot already, also
  // under an id that has gone since, joins that slot again and is merged no second time; in place of itself it changes
  // nothing. What cannot be merged (DoRA, biases, saved modules, files of its text that others do not have, a delta-W
  // of zero) keeps a slot of its own while the budget has room for that. The only errors are CheckPoolId's, the
  // adapter's readers', kFailedPrecondition (an id that is there; another base; by kBounded a member that would lose
  // too much, named with figures; neither a probe nor a largest error for a member), kResourceExhausted (no slot has
  // room for it), `score`'s, `accept`'s and kIo. After an error the pool is as before, but for the count of refusals.
  Result<PoolAdded> Add(ThreadPool& pool, const std::string& id, const std::string& adapter_directory,
                        const PoolAddOptions& options = {});
  // The id is answered no more. Its slot goes with its last id; what went into it stays in it. kNotFound, kIo.
  Status Remove(const std::string& id);
  // All ids of the slot are answered no more, and its bytes are free; which they were. kNotFound, kIo.
  Result<std::vector<std::string>> EvictSlot(const std::string& slot);
  // Counts requests for `id`, for the choice of the least used slot. On disk with the next change, or by Flush.
  void CountUses(const std::string& id, uint64_t n);
  Status Flush();
  // Settings for what comes from now on; slots stay as they are, also beyond a smaller budget. Errors as
  // CheckPoolSettings and kIo.
  Status ChangeSettings(const PoolSettings& settings);

 private:
  friend class PoolAddition;  // one call of Add: pool_addition.cc

  AdapterPool(std::string directory, int lock_fd) : directory_(std::move(directory)), lock_fd_(lock_fd) {}
  static Result<std::unique_ptr<AdapterPool>> Locked(const std::string& directory, const PoolLockWait& wait);
  // `next` becomes the state, on disk; directories of slots that it lacks go.
  Status Commit(PoolState next, const std::function<void(std::string_view)>& on_step = {});
  // Reads a slot and marks it when it is damaged.
  bool IsSound(const std::string& name);
  // Removes the directory of a slot that was not committed, unless pool.json speaks of it after all.
  void Discard(const std::string& slot);

  std::string directory_;
  int lock_fd_ = -1;
  PoolState state_;
};

}  // namespace df

#endif  // DELTAFOLD_MERGE_ADAPTER_POOL_H_
