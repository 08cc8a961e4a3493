// Generations and their weights: the residency cache behind a lock, with the threads that do what it decides. Loader
// threads pack, one thread drops; the engine thread only asks. Weights are freed before their reservation ends.
#ifndef DELTAFOLD_STORE_RESIDENT_SET_H_
#define DELTAFOLD_STORE_RESIDENT_SET_H_

#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/numa.h"
#include "store/generation.h"
#include "store/load_pace.h"
#include "store/residency_cache.h"
#include "store/variant_source.h"

namespace df {

class ResidentSet;

// The store's generations. Keeps the files open; gone when the last variant and request that refer to it are.
// Thread-safe.
class StoredGeneration final : public Generation {
 public:
  StoredGeneration(std::shared_ptr<ResidentSet> set, CacheId id, std::shared_ptr<const VariantSource> source)
      : set_(std::move(set)), id_(id), info_(source->info), parent_(source->parent), source_(std::move(source)) {}
  ~StoredGeneration() override;

  const GenerationInfo& info() const override { return info_; }
  LeaseAttempt TryLease(int64_t now_us) const override;
  void CountRequest(int64_t now_us) const override;
  void EndAsk() const override;
  CacheId id() const { return id_; }
  const GenerationRef& parent() const { return parent_; }
  // The files that it is packed from: those of this content that were opened last.
  std::shared_ptr<const VariantSource> source() const;

 private:
  friend class ResidentSet;
  // Other files of the same content, and the former ones.
  std::shared_ptr<const VariantSource> ExchangeSource(std::shared_ptr<const VariantSource> source) const;

  const std::shared_ptr<ResidentSet> set_;
  const CacheId id_;
  const GenerationInfo info_;
  const GenerationRef parent_;
  mutable std::mutex source_mutex_;  // taken last
  mutable std::shared_ptr<const VariantSource> source_;
};
using StoredGenerationRef = std::shared_ptr<const StoredGeneration>;

struct ResidentSetOptions {
  CacheOptions cache = {};                       // max_loads = number of loader threads
  uint64_t load_bytes_per_second = 0;            // while somebody decodes; 0 = as fast as it goes
  std::shared_ptr<const Clock> clock = nullptr;  // null: SteadyClock
  NumaReaders readers = {};                      // the engine's threads: where weights should lie
};

// Thread-safe.
class ResidentSet : public std::enable_shared_from_this<ResidentSet> {
 public:
  // std::system_error, or std::bad_alloc, when a thread cannot be started: none is left then.
  static std::shared_ptr<ResidentSet> Create(std::shared_ptr<const BaseWeights> base, ResidentSetOptions options);
  ~ResidentSet();

  void RaiseBudget(uint64_t budget_bytes);
  // The generation of that content: the one there is already, which takes these files for its own (its former ones may
  // be damaged) and is loaded from them without waiting for the end of a failure; or a new one. kResourceExhausted when
  // it can never fit.
  Result<StoredGenerationRef> Adopt(std::shared_ptr<const VariantSource> source);
  // No name stands for it any more.
  void Retire(const StoredGeneration& generation);
  Status SetPinned(const StoredGeneration& generation, bool pinned);
  // Pins `to` in the place of `from` (null: of none), which nobody can take in between. kResourceExhausted as
  // SetPinned: all is as it was then.
  Status MovePin(const StoredGeneration* from, const StoredGeneration& to);
  void Prefetch(const StoredGeneration& generation);
  Status Evict(const StoredGeneration& generation);
  // As ResidencyCache::CheckFits.
  Status CheckFits(const StoredGeneration& generation) const;
  // Counts bytes of what variants need besides weights until the answer goes; makes room for them, and waits until
  // there is. kResourceExhausted when what is pinned, or one that has a name, could never be had beside them;
  // kUnavailable after Stop.
  Result<std::shared_ptr<void>> Charge(uint64_t bytes);
  // Asks for a load and waits for its end: ok when resident, else why not. kUnavailable after Stop.
  Status LoadBlocking(const StoredGeneration& generation);

  CacheEntryView View(const StoredGeneration& generation) const;
  struct Picture {
    std::vector<CacheEntryView> views;  // one for each asked for
    std::set<CacheId> auto_pinned;
    std::map<CacheId, Status> kept_out;  // as ResidencyCache::KeptOut
    int64_t now_us = 0;
  };
  Picture PictureOf(const std::vector<const StoredGeneration*>& generations) const;  // of one moment
  struct Totals {
    CacheStats stats;
    uint64_t budget_bytes = 0, reserved_bytes = 0, resident_bytes = 0;
    uint64_t charged_bytes = 0;  // of them, for other things than weights
  };
  Totals Sums() const;

  // As VariantStore::SetWaker. Once it returns, the former one does not run any more.
  void SetWaker(std::function<void()> wake);
  // Whether somebody decodes now: loads keep to the rate then. Called on loader threads; empty = always.
  void SetBusyProbe(std::function<bool()> is_busy);
  // Ends the threads; loads under way are given up. Called by whoever owns the set: a generation may be the last that
  // refers to it, and end on one of its threads.
  void Stop();

 private:
  friend class StoredGeneration;
  struct Slot {
    std::weak_ptr<const StoredGeneration> generation;
    std::shared_ptr<const VariantWeights> weights;  // while resident
    bool was_read = false;                          // a load has gone through
    bool was_damaged = false;                       // the last load failed for its files
  };

  ResidentSet(std::shared_ptr<const BaseWeights> base, ResidentSetOptions options);
  void StartThreads(size_t n_loaders);
  LeaseAttempt TryLease(CacheId id, int64_t now_us);
  void EndLease(CacheId id);
  void CountRequest(CacheId id, int64_t now_us);
  void EndAsk(CacheId id);
  void EndCharge(CacheId id);
  void Forget(CacheId id, const std::string& digest);
  void LoadLoop(KernelContext& context);
  void LoadOne(KernelContext& context, CacheId id, std::unique_lock<std::mutex>& lock);
  Result<std::shared_ptr<const VariantWeights>> Pack(KernelContext& context, const StoredGeneration& generation,
                                                     bool was_damaged, PackOptions options) const;
  Status Pace(size_t bytes);
  void DropLoop();
  void WakeAll();
  void Wake();

  const std::shared_ptr<const BaseWeights> base_;
  const std::shared_ptr<const Clock> clock_;
  const bool keeps_pace_;
  const NumaReaders readers_;

  mutable std::mutex mutex_;
  std::condition_variable loaders_, dropper_, waiters_;
  ResidencyCache cache_;
  std::map<CacheId, Slot> slots_;
  std::map<std::string, std::weak_ptr<const StoredGeneration>> by_digest_;
  bool stopping_ = false;

  std::mutex pace_mutex_;
  std::condition_variable pace_;
  LoadPace bucket_;
  bool pace_stopping_ = false;
  std::function<bool()> is_busy_;

  std::mutex wake_mutex_;
  std::function<void()> wake_;
  std::vector<std::thread> threads_;
};

}  // namespace df

#endif  // DELTAFOLD_STORE_RESIDENT_SET_H_
