// The store of a running program: a registry of names over a resident set, with what keeps names over restarts (a state
// file) and what takes them from a directory that is watched.
#ifndef DELTAFOLD_STORE_LIVE_STORE_H_
#define DELTAFOLD_STORE_LIVE_STORE_H_

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "merge/pool_state.h"
#include "store/adapter_slots.h"
#include "store/directory_watch.h"
#include "store/registry.h"
#include "store/resident_set.h"
#include "store/shared_names.h"
#include "store/shared_tokenizers.h"
#include "store/state_file.h"
#include "store/variant_store.h"

namespace df {

// docs/store.md measures it: packing at this rate lengthens the time per token by a tenth on two cores.
inline constexpr uint64_t kDefaultLoadBytesPerSecond = uint64_t{48} << 20;

struct LiveStoreOptions {
  uint64_t budget_bytes = UINT64_MAX;  // of variants' weights
  uint64_t raised_bytes = 0;           // AddGiven may raise the budget to this, that all of them fit
  size_t n_load_threads = 2;
  uint64_t load_bytes_per_second = 0;  // while somebody decodes; 0 = as fast as it goes
  size_t auto_pin = 6;
  int64_t idle_timeout_s = 600;  // 0 = never
  std::string state_file = {};   // "" = none
  int64_t look_every_ms = 1000;  // at the watched directory
  std::string variant_dir = {};  // watched once RestoreAndWatch was called; "" = none
  // Adapters that Register is given, on the base, go into a pool: in `pool_directory`, or as AdapterSlots::Open.
  // Absent: each is itself.
  std::optional<PoolSettings> pool = {};
  std::string pool_directory = {};
  std::shared_ptr<const Clock> clock = nullptr;       // null: SteadyClock
  NumaReaders readers = {};                           // as in ResidentSetOptions
  std::function<void(const std::string&)> warn = {};  // one line; called on any thread
};

// A variant that the command line gives.
struct GivenVariant {
  std::string name, directory;
  std::string parent = {};  // as in RegisterOptions; given as well
};

struct RestoreHooks {
  std::function<bool()> gives_up = {};  // asked before each name; yes: nothing more is done
  // Where the directory of a line may be read now, links resolved; an error leaves the name out. Empty: where it says.
  std::function<Result<std::string>(const std::string& directory)> resolve = {};
};

// Thread-safe.
class LiveStore final : public VariantStore {
 public:
  // The only errors are those of StateFile::Open and AdapterSlots::Open.
  static Result<std::unique_ptr<LiveStore>> Create(LoadedBase base, LiveStoreOptions options);
  ~LiveStore() override;

  // Registers the command line's variants, several at once, pins those of `pinned`, and loads as many as fit into the
  // budget, pinned ones first, then in the order given; waits for the loads. Any failure is the start's, with its name.
  // A pinned name may also come from the state file or the watched directory, where there is one: Ready waits for it.
  Status AddGiven(const std::vector<GivenVariant>& given, const std::vector<std::string>& pinned);
  // Registers what the pool and the state file hold (what cannot be is a warning, and stays there), then begins to
  // watch. False when it was given up.
  bool RestoreAndWatch(const RestoreHooks& hooks = {});
  // Loads keep to their rate while it says yes. As ResidentSet::SetBusyProbe.
  void SetBusyProbe(std::function<bool()> is_busy) { set_->SetBusyProbe(std::move(is_busy)); }

  const std::string& base_name() const override { return registry_.base_name(); }
  std::shared_ptr<const Variant> FindOrNull(std::string_view name) const override { return registry_.FindOrNull(name); }
  std::vector<std::shared_ptr<const Variant>> List() const override { return registry_.List(); }
  Result<std::shared_ptr<const Variant>> Register(const std::string& name, const std::string& directory,
                                                  const RegisterOptions& options) override;
  Status Retire(const std::string& name, const std::string& expected_generation) override;
  Status Pin(const std::string& name, const std::string& expected_generation) override;
  Status Unpin(const std::string& name, const std::string& expected_generation) override;
  Status Prefetch(const std::string& name, const std::string& expected_generation) override;
  Status Evict(const std::string& name, const std::string& expected_generation) override;
  std::vector<VariantStatus> Statuses() const override;
  StoreStats Stats() const override;
  bool Ready() const override;
  void SetWaker(std::function<void()> wake) override { set_->SetWaker(std::move(wake)); }

 private:
  static const StoredGeneration& StoredOf(const Variant& variant) {
    return static_cast<const StoredGeneration&>(*variant.generation);
  }

  enum class Origin { kCommandLine, kWatched, kRuntime, kRestored, kPooled };
  struct Opened {
    std::shared_ptr<const VariantSource> source;
    std::shared_ptr<Variant> variant;
    std::string given;  // directory as given, made absolute: a link may be turned before the next start
  };

  LiveStore(LoadedBase base, LiveStoreOptions options, std::unique_ptr<StateFile> state,
            std::unique_ptr<AdapterSlots> slots);
  Result<std::shared_ptr<const Variant>> RegisterPooled(const std::string& name, const std::string& directory,
                                                        const RegisterOptions& options);
  struct PooledName {
    std::string name;
    std::shared_ptr<const Variant> variant;  // that it stood for; null = none
    bool was_pinned = false;
  };
  Status MoveNames(const AdapterSlots::Placed& placed, const std::string& name, const RegisterOptions& options,
                   std::vector<PooledName>& moved);
  void PutBack(const std::vector<PooledName>& moved);  // the last one first
  bool RestorePool(const RestoreHooks& hooks);
  void WarnOfDamage();
  Result<std::shared_ptr<const Variant>> RegisterFrom(Origin origin, const std::string& name,
                                                      const std::string& directory, const RegisterOptions& options);
  Result<Opened> Open(const std::string& name, const std::string& directory, const RegisterOptions& options,
                      bool verify) const;
  Result<std::shared_ptr<const Variant>> Publish(Origin origin, Opened opened, const RegisterOptions& options);
  Status RetireFrom(Origin origin, const std::string& name, const std::string& expected_generation);
  Status RetireAbsent(const std::string& name);
  Status ChangePin(const std::string& name, const std::string& expected_generation, bool pinned);
  Status ApplyPin(const Variant& variant, bool pinned);
  Status PinGiven(const std::string& name);
  Status Keep(const Opened& opened, const RegisterOptions& options);
  void UndoPin(const std::string& name);
  Status MovePin(const std::string& name, const StoredGeneration& to);
  bool IsPinned(const std::string& name) const { return pinned_.Has(name); }
  bool HasPinnedName(const Variant& variant, const std::string& but = {}) const;
  bool IsSettled(const std::string& name) const;
  Status CheckFamily(const Opened& opened) const;
  ResidentSet::Picture PictureOf(const std::vector<std::shared_ptr<const Variant>>& all) const;
  void ReleaseIfNameless(const Variant& variant);
  Result<std::vector<Opened>> OpenGiven(const std::vector<GivenVariant>& given) const;
  Status LoadGiven(const std::vector<std::shared_ptr<const Variant>>& variants);
  bool Restore(const StoredState& stored, const RestoreHooks& hooks);
  // What the watching thread knows; its own.
  struct OpenChange {
    WatchedChange change;
    std::string said = {};                  // of the refusal, last
    uint64_t wait_looks = 0, due_look = 0;  // until it is tried again
  };
  struct Watching {
    DirectoryWatch directory;
    std::map<std::string, std::string> ours = {};  // name -> digest registered from there
    std::map<std::string, OpenChange> open = {};   // by name: seen, and not followed yet
    std::string said = {};                         // of the directory, last
    uint64_t n_looks = 0;
  };
  void WatchLoop();
  void LookOnce(Watching& watching);
  Result<std::string> ConfinedPlace(const std::string& directory) const;
  Status Follow(const WatchedChange& change, std::map<std::string, std::string>& ours);
  void Warn(const std::string& text) const;

  const LoadedBase base_;
  const LiveStoreOptions options_;
  const std::shared_ptr<ResidentSet> set_;
  const std::shared_ptr<SharedTokenizers> tokenizers_;
  Registry registry_;

  std::mutex pool_changes_;                    // a merge and its registrations; taken before `changes_`
  const std::unique_ptr<AdapterSlots> slots_;  // null = none
  std::set<std::string> said_damaged_;         // slots; with pool_changes_

  // Changes of names come one after another; taken before the locks of registry and set, never while one is held.
  std::mutex changes_;
  std::unique_ptr<StateFile> state_;  // null = none
  // Pins are wishes about names: one may be pinned while nothing stands for it (a watched directory that is away, a
  // registration that could not be restored). Who looks does not wait for `changes_`, held while a file is synced.
  SharedNames pinned_;
  mutable SharedNames awaited_;          // pins of the start that Ready still waits for
  std::atomic<bool> has_looked_{false};  // whoever the state file and the watched directory hold has been seen

  std::mutex watch_mutex_;
  std::condition_variable watch_;
  bool stopping_ = false;
  std::thread watcher_;
};

}  // namespace df

#endif  // DELTAFOLD_STORE_LIVE_STORE_H_
