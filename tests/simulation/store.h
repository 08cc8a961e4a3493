// The real registry and the real residency cache in a single thread: names change as store/live_store.h changes them,
// loads and drops take virtual time on virtual threads as in store/resident_set.h, and files and weights are made up.
// Beside them, books of its own, kept without asking either: what is held, leased, loading.
#ifndef DELTAFOLD_TESTS_SIMULATION_STORE_H_
#define DELTAFOLD_TESTS_SIMULATION_STORE_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "draws.h"
#include "environment.h"
#include "store/registry.h"
#include "store/residency_cache.h"

namespace df::simulation {

class Store;

// What a registered directory was read as.
struct Source {
  std::string digest;  // of the content and its parent's
  uint64_t bytes = 0;
  bool is_broken = false, has_nan = false;
  GenerationRef parent;
  std::string parent_name;
};

class SimulatedGeneration final : public Generation {
 public:
  SimulatedGeneration(Store& store, CacheId id, Source source);
  ~SimulatedGeneration() override;
  const GenerationInfo& info() const override { return info_; }
  LeaseAttempt TryLease(int64_t now_us) const override;
  void CountRequest(int64_t now_us) const override;
  void EndAsk() const override;
  CacheId id() const { return id_; }
  const Source& source() const { return source_; }

 private:
  Store& store_;
  const CacheId id_;
  const Source source_;
  GenerationInfo info_;
};

// Books on one generation.
struct Books {
  std::string digest;
  CacheId parent = kNoCacheId;
  uint64_t bytes = 0;
  uint64_t n_leases = 0;
  bool is_loading = false, is_resident = false, is_dropping = false;
  bool is_evicted = false;  // by the operator, and not gone yet
  bool is_forgotten = false;
  size_t n_failures = 0;  // in a row
  bool ever_failed = false;
  int64_t failed_us = 0;
  int64_t asked_us = -1;       // since when it is asked for without a lease; -1 = it is not
  int64_t asked_awake_us = 0;  // the same by a clock that stands while the machine sleeps
  int64_t last_asked_us = -1;  // the latest ask of these
  int64_t wanted_us = -1;      // the latest ask or count that found it out; -1 = nobody is there any more who did
  int64_t loaded_us = -1;      // the last load's end
  int64_t used_us = -1;        // the last lease's end
};

class Store {
 public:
  Store(Environment& environment, std::function<void()> wake);
  ~Store();

  std::shared_ptr<const Variant> FindOrNull(const std::string& name) const { return registry_.FindOrNull(name); }
  // As LiveStore: reading the directory, then, some time later, giving it the name.
  Result<Source> Open(const Content& content, const std::string& parent_name) const;
  Status Publish(const std::string& name, Source source, const PutOptions& options, bool pinned);
  Status Retire(const std::string& name, const std::string& expected_generation);
  Status SetPinned(const std::string& name, const std::string& expected_generation, bool pinned);
  Status Prefetch(const std::string& name, const std::string& expected_generation);
  Status Evict(const std::string& name, const std::string& expected_generation);
  void StopTicking() { is_ticking_ = false; }
  void Heal() { is_healthy_ = true; }  // no more faults of loads, but those of broken contents

  // For the checks.
  const Registry& registry() const { return registry_; }
  const ResidencyCache& cache() const { return cache_; }
  const std::map<CacheId, Books>& books() const { return books_; }
  static CacheId IdOf(const Generation& generation) { return static_cast<const SimulatedGeneration&>(generation).id(); }
  const Books& BooksOf(const Generation& generation) const { return books_.at(IdOf(generation)); }
  bool IsPinned(const std::string& name) const;
  bool HasOpen(const std::string& digest) const;  // resident, and takes leases
  // Of contents that a load failed of.
  const std::set<std::string>& failed_digests() const { return failed_digests_; }
  uint64_t held_bytes() const { return held_bytes_; }
  uint64_t n_leases() const { return n_leases_; }
  uint64_t n_ended_leases() const { return n_ended_leases_; }
  size_t most_generations() const { return most_generations_; }
  int64_t longest_lease_us() const;
  int64_t longest_grant_us() const { return longest_grant_us_; }  // from an ask until the weights were there

 private:
  friend class SimulatedGeneration;
  using GenerationPtr = std::shared_ptr<const SimulatedGeneration>;
  enum class Fault { kNone, kUnreadable, kCorrupt, kGone, kNoMemory, kMoreBytes, kFewerBytes };
  struct Load {
    CacheId id = kNoCacheId;
    Fault fault = Fault::kNone;
    int64_t started_us = 0;
    std::shared_ptr<const VariantWeights> weights, parent;
  };

  static const SimulatedGeneration& Of(const Variant& variant) {
    return static_cast<const SimulatedGeneration&>(*variant.generation);
  }
  int64_t CacheNow() { return CacheTime(environment_.now_us() - StaleUs()); }
  int64_t CacheTime(int64_t now_us) {
    latest_us_ = std::max(latest_us_, now_us);
    return now_us;
  }
  int64_t StaleUs();

  // Names.
  Result<GenerationPtr> Adopt(Source source);
  Status ApplyPin(const Variant& variant, bool pinned);
  Status MovePin(const std::string& name, const SimulatedGeneration& to);
  bool HasPinnedName(const Variant& variant) const;
  bool IsParent(const std::string& name) const;
  Status CheckFamily(const std::string& name, const Source& source) const;
  void ReleaseIfNameless(const Variant& variant);
  void RetireIfNameless(const GenerationRef& generation);

  // Generations.
  bool IsOpen(CacheId id) const;
  bool IsPinned(CacheId id) const;
  bool IsWanted(CacheId id, const Books& books) const;
  uint64_t BytesAtOnce() const;
  LeaseAttempt TryLease(CacheId id, int64_t now_us);
  void EndLease(CacheId id, uint64_t serial);
  void CountRequest(CacheId id, int64_t now_us);
  void EndAsk(CacheId id);
  void Forget(CacheId id);

  // Threads.
  void NotifyLoaders();
  void NotifyDropper();
  void TickLoaders();
  void TickDropper();
  void LookForLoads();
  void StartLoad(CacheId id);
  Fault DrawFault(const SimulatedGeneration& generation);
  void EndLoad(const std::shared_ptr<Load>& load);
  Status FailureOf(const Load& load, const Books& books) const;
  void LookForDrops();
  void StartDrop(CacheId id);
  void EndDrop(CacheId id);
  std::shared_ptr<const VariantWeights> Allocate(const std::string& digest, uint64_t bytes);

  // Checks that belong to a moment rather than to a state.
  void CheckLoadStarts(CacheId id);
  void CheckDropStarts(CacheId id);
  void CheckPrefetch(CacheId id);
  void CheckLoadersIdle();
  void CheckNobodyIsHeldUp(uint64_t free_bytes);
  void CheckClosed();
  void CheckNothingIsLeft();
  void CheckProgress();

  Environment& environment_;
  const std::function<void()> wake_;
  Registry registry_;
  ResidencyCache cache_;
  std::map<std::string, bool> pinned_;  // by name
  std::map<std::string, std::weak_ptr<const SimulatedGeneration>> by_digest_;
  std::map<CacheId, std::weak_ptr<const SimulatedGeneration>> generations_;
  std::map<CacheId, std::shared_ptr<const VariantWeights>> weights_;  // resident ones

  std::map<CacheId, Books> books_;
  std::set<std::string> failed_digests_;
  uint64_t held_bytes_ = 0, n_leases_ = 0, n_ended_leases_ = 0;
  std::map<uint64_t, int64_t> leased_since_us_;  // by serial number
  uint64_t n_granted_ = 0;
  size_t most_generations_ = 0;
  bool has_parents_ = false;  // some generation had one
  int64_t latest_us_ = 0;     // that the cache was told
  int64_t longest_lease_us_ = 0, longest_load_us_ = 0, longest_grant_us_ = 0;

  Draws loads_, threads_;
  size_t n_loads_ = 0, n_busy_loaders_ = 0;
  bool loaders_look_ = false, dropper_looks_ = false, is_dropping_ = false;
  bool is_ticking_ = true, is_healthy_ = false;
};

}  // namespace df::simulation

#endif  // DELTAFOLD_TESTS_SIMULATION_STORE_H_
