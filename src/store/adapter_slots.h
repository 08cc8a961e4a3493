// The adapter pool of a running program: which directory the name of a pooled adapter stands for
// (merge/adapter_pool.h). Names of one slot stand for one content, and so share one generation and one copy in memory.
#ifndef DELTAFOLD_STORE_ADAPTER_SLOTS_H_
#define DELTAFOLD_STORE_ADAPTER_SLOTS_H_

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "merge/adapter_pool.h"
#include "store/variant_store.h"

namespace df {

// Thread-safe. Changes come one after another and take as long as a merge does, on the caller's thread alone; who looks
// waits for none.
class AdapterSlots {
 public:
  // Opens the pool in `directory`, or makes one; `settings` hold from now on. "" = a directory of its own among the
  // system's temporary ones, which goes with this. Every slot is read: a damaged one is no error. The only errors are
  // the pool's.
  static Result<std::unique_ptr<AdapterSlots>> Open(const std::string& directory, const PoolSettings& settings);
  ~AdapterSlots();

  struct Placed {
    std::string directory, digest;   // of the slot
    std::vector<std::string> names;  // that it stands for, the new one included
  };
  struct AddOptions {
    bool replace = false;                          // a name that is there leaves its slot first
    std::string root;                              // kept with the name
    std::map<std::string, double> requests_per_s;  // by name: the least used slot is evicted first
    // PoolAddOptions::accept. Must not change these slots; what it sees of them is as before.
    std::function<Status(const Placed&)> accept;
  };
  // AdapterPool::Add; returns the names that stand for nothing any more.
  Result<std::vector<std::string>> Add(const std::string& name, const std::string& directory,
                                       const AddOptions& options);
  Status Remove(const std::string& name);

  struct Damaged {
    std::string slot, why;
    std::vector<std::string> names;
  };
  std::vector<Damaged> DamagedSlots() const;
  const std::string& directory() const { return pool_->directory(); }
  bool Has(const std::string& name) const { return State()->FindOrNull(name) != nullptr; }
  struct Kept {
    std::string directory, root;  // "" = not known
  };
  std::map<std::string, Kept> Directories() const;  // by name, of slots that are not damaged
  std::map<std::string, PoolPlace> Places() const;  // by name
  PoolTotals Totals() const;

 private:
  AdapterSlots(std::unique_ptr<AdapterPool> pool, std::string temporary)
      : pool_(std::move(pool)), temporary_(std::move(temporary)) {
    Show();
  }
  std::shared_ptr<const PoolState> State() const;
  void Show();

  std::mutex changes_;
  const std::unique_ptr<AdapterPool> pool_;
  const std::string temporary_;  // "" = none
  mutable std::mutex mutex_;     // of what is shown
  std::shared_ptr<const PoolState> shown_;
};

}  // namespace df

#endif  // DELTAFOLD_STORE_ADAPTER_SLOTS_H_
