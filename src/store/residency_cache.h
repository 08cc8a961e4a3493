// Which generations are in memory, which is loaded next and which has to go: the store's decisions as a state machine
// without threads, locks, clocks, files or weights. Whoever drives it tells it the time, does the loads and drops that
// it hands out, and reports how they went (docs/store.md has the picture and the derivations).
//
//   registered --NextLoad--> loading --LoadDone--> resident --NextDrop--> leaving --Dropped--> registered
//                               \--LoadFailed--> failed(cause, retry at) --a later ask--> loading
//
// Bytes are reserved by NextLoad and given back by Dropped or LoadFailed, so that the sum of reservations never exceeds
// the budget, and what is reserved covers what is held at every moment.
//
// Progress: every choice follows one plan of rooms (residency_rooms.cc), made anew each time: those who wait get room
// in the order in which they began to wait, out of what is free, what is leaving, what nobody leases, and, when others'
// leases are in the way for longer than `patience_us`, what takes no new leases until it has gone. Whoever has to wait
// for leases is overtaken by those who fit without it, for `overtake_us`, then by nobody who takes room from it. Only
// the operator's pins hold out, and what cannot fit beside them is answered at once.
#ifndef DELTAFOLD_STORE_RESIDENCY_CACHE_H_
#define DELTAFOLD_STORE_RESIDENCY_CACHE_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "store/load_histogram.h"
#include "store/residency_state.h"

namespace df {

using CacheId = uint64_t;  // of a generation, never used again
inline constexpr CacheId kNoCacheId = 0;

enum class EvictionCause { kBudget, kIdle, kOperator, kRetired };
std::string_view EvictionCauseName(EvictionCause cause);  // "budget", "idle", "operator", "retired"

struct CacheOptions {
  uint64_t budget_bytes = UINT64_MAX;
  size_t max_loads = 2;                      // at once, and rooms that are made at once
  size_t auto_pin = 6;                       // the most wanted: go last and never for idleness
  int64_t idle_timeout_us = 600'000'000;     // 0 = never
  int64_t half_life_us = 300'000'000;        // of request rates
  int64_t first_backoff_us = 1'000'000;      // after a failed load, doubling
  int64_t longest_backoff_us = 300'000'000;  //
  int64_t patience_us = 2'000'000;           // that who waits has with others' leases, and what came in at least
  int64_t overtake_us = 10'000'000;          // >= patience_us: so long others take room that a waiter cannot use yet
  int64_t interest_us = 30'000'000;          // an ask that is not repeated is forgotten: the engine's longest step
};

struct CacheContent {
  uint64_t bytes = 0;           // that its load reserves
  CacheId parent = kNoCacheId;  // must be resident while this is loading or resident
  // No weights but something that names need as long as they stand (a tokenizer): pinned, not counted as a load.
  bool is_charge = false;
};

struct CacheGrant {
  bool granted = false;
  Status failure = {};    // not granted: why it cannot be had now; ok = it is on its way
  bool kept_out = false;  // the failure is that there is no room beside what is pinned
};

// What is known of one generation.
struct CacheEntryView {
  ResidencyState state = ResidencyState::kRegistered;
  Status failure;
  int64_t retry_at_us = 0;
  bool pinned = false, retired = false;
  bool leaving = false;   // its memory is being given back
  bool draining = false;  // resident, takes no new leases
  bool wanted = false;    // by a request that has no lease
  bool queued = false;    // to be loaded: wanted, prefetched or pinned, and not there
  int64_t queued_since_us = 0;
  uint64_t reserved_bytes = 0;
  uint64_t n_leases = 0;
  double requests_per_s = 0;
  int64_t last_used_us = -1;  // -1 = never
  int64_t load_us = 0;        // of the last load; 0 = none yet
};

struct CacheStats {
  uint64_t lookups = 0, hits = 0, loads = 0, load_failures = 0;
  LoadHistogram load_times;  // of loads that went through
  std::map<EvictionCause, uint64_t> evictions;
};

// Thread-compatible. `now_us` comes from one monotonic clock; a smaller value than before counts as the latest.
class ResidencyCache {
 public:
  explicit ResidencyCache(const CacheOptions& options) : options_(options) {}

  void RaiseBudget(uint64_t budget_bytes) { options_.budget_bytes = std::max(options_.budget_bytes, budget_bytes); }

  // Generations. `content.parent` is known and not forgotten while this one is.
  CacheId Add(const CacheContent& content);
  // No name stands for it any more: unpinned, and dropped once nobody leases or waits for it.
  void Retire(CacheId id);
  void Revive(CacheId id);  // a name stands for it (again), its files were found good: a failure is forgotten
  // Nobody can ask for it any more. Its id is gone once its memory is.
  void Forget(CacheId id);
  // kResourceExhausted, with the numbers, when it can never be resident beside what is pinned.
  Status CheckFits(const CacheContent& content) const;  // before Add
  Status CheckFits(CacheId id) const;
  // As CheckFits(CacheContent), of a charge: also when one that has a name could never be resident beside it.
  Status CheckCharge(uint64_t bytes) const;
  // kResourceExhausted when the pinned ones together exceed the budget. A pinned one is loaded without being asked for.
  Status SetPinned(CacheId id, bool pinned, int64_t now_us);

  // Demand.
  void CountRequest(CacheId id, int64_t now_us);  // once a request, when it begins: statistics, and an ask
  CacheGrant TryLease(CacheId id, int64_t now_us);
  void EndLease(CacheId id, int64_t now_us);
  // Nobody waits for it any more: no room is made for it. Who asks again within `interest_us` has his former turn.
  void EndAsk(CacheId id, int64_t now_us);
  // Loaded though nobody waits, when nobody waits for room: into free room, or that of what nobody leases and nobody
  // has used for `patience_us`.
  void Prefetch(CacheId id, int64_t now_us);
  // Leaves now. kFailedPrecondition while pinned, leased, loading or the parent of a resident one. Fine when not there.
  Status Evict(CacheId id, int64_t now_us);

  // Work to do: NextLoad reserves; exactly one LoadDone (with at most the bytes reserved) or LoadFailed follows.
  std::optional<CacheId> NextLoad(int64_t now_us);
  void LoadDone(CacheId id, uint64_t bytes, int64_t now_us);
  void LoadFailed(CacheId id, Status cause, int64_t now_us);
  // Give back the memory of one, then report Dropped. Repeat until there is none.
  std::optional<CacheId> NextDrop(int64_t now_us);
  // Whether, since the last call, something takes leases again that somebody was refused: he has to be told to ask.
  // Other news come with LoadDone and LoadFailed; this after NextDrop and SetPinned.
  bool TakeReopened() { return std::exchange(reopened_, false); }
  void Dropped(CacheId id, int64_t now_us);

  // Observables.
  bool Knows(CacheId id) const { return entries_.contains(id); }
  std::vector<CacheId> Ids() const;
  CacheEntryView View(CacheId id, int64_t now_us) const;
  std::map<CacheId, Status> KeptOut() const;           // of those not in memory: whose CheckFits fails, and how
  std::set<CacheId> AutoPinned(int64_t now_us) const;  // the most wanted of the resident ones
  uint64_t budget_bytes() const { return options_.budget_bytes; }
  uint64_t reserved_bytes() const { return reserved_bytes_; }
  uint64_t resident_bytes() const;
  uint64_t charged_bytes() const;
  size_t n_loading() const { return n_loading_; }
  bool AnyWanted(int64_t now_us) const;
  const CacheStats& stats() const { return stats_; }
  // The first broken invariant, in words; "" when all hold. For tests and the simulation.
  std::string CheckInvariants() const;

 private:
  enum class Phase { kOut, kLoading, kIn, kLeaving };
  struct Entry {
    CacheContent content;
    Phase phase = Phase::kOut;
    bool retired = false, forgotten = false, pinned = false, prefetch = false, draining = false;
    bool handed_out = false;  // by NextDrop, not yet reported
    bool awaited = false;     // loaded for somebody who has not leased it yet
    uint64_t reserved_bytes = 0;
    uint64_t n_leases = 0;
    std::set<CacheId> children_in;  // loading, resident or leaving
    double rate = 0;                // requests a half-life, decayed to rate_at_us
    int64_t rate_at_us = 0;
    int64_t asked_us = -1;  // the last ask without a lease since the last lease; -1 = none
    int64_t left_us = -1;   // when its ask was ended, and not repeated since; -1 = it was not
    int64_t since_us = 0;   // when it began to be wanted
    int64_t last_used_us = -1, in_since_us = 0, load_started_us = 0, load_us = 0;
    Status failure;
    int64_t retry_at_us = 0;
    int n_failures = 0;
    bool answered = true;  // somebody was told of the failure
  };

  struct Wanted {
    CacheId load = kNoCacheId;  // what is loaded next
    bool is_asked = false;      // else prefetched
    int64_t since_us = 0;       // by whom it is for: itself or a child
  };
  // What is pinned and what that sits on: it stays.
  struct Pins {
    std::set<CacheId> ids;
    uint64_t bytes = 0;
  };
  struct Candidate;
  struct Claims;
  struct Choice {
    bool leased = false;
    int64_t unused_since_us = 0;  // only those that nobody has used after that
  };
  // Who gets which room, decided at one moment.
  struct RoomPlan {
    CacheId load = kNoCacheId;     // the first that has its room
    std::vector<CacheId> victims;  // go now
    std::set<CacheId> closed;      // take no new leases: victims, and those whose leases somebody waits for
  };

  int64_t Now(int64_t now_us) { return latest_us_ = std::max(latest_us_, now_us); }
  bool IsAsked(const Entry& entry, int64_t now_us) const;
  bool IsAwaited(const Entry& entry, int64_t now_us) const { return entry.awaited && IsAsked(entry, now_us); }
  bool IsFailing(const Entry& entry, int64_t now_us) const;
  bool HasWantedChild(CacheId id, int64_t now_us) const;
  double RateOf(const Entry& entry, int64_t now_us) const;
  double ScoreOf(const Entry& entry, int64_t now_us) const;
  Pins PinsOf() const;
  uint64_t BytesWithPins(const Pins& pins, CacheId id, const CacheContent& content) const;
  Status CheckBudget(uint64_t own_bytes, uint64_t needed_bytes, const Pins& pins, const char* beside) const;
  Status CheckFits(const Pins& pins, CacheId id, const CacheContent& content) const;
  Status FailureOf(Entry& entry, int64_t now_us);
  void Ask(Entry& entry, int64_t now_us);
  std::vector<Wanted> WantedInOrder(int64_t now_us) const;
  CacheId LoadFor(CacheId id, const Entry& entry, int64_t now_us) const;
  RoomPlan PlanRooms(int64_t now_us) const;
  std::vector<Candidate> CandidatesInOrder(int64_t now_us) const;
  uint64_t Choose(const Choice& choice, uint64_t missing_bytes, Claims& claims,
                  std::vector<const Candidate*>& chosen) const;
  bool PlanAtOnce(const Wanted& wanted, int64_t now_us, Claims& claims, RoomPlan& plan) const;
  void PlanOverLeases(const Wanted& wanted, int64_t now_us, Claims& claims, RoomPlan& plan) const;
  bool CanLeave(const Entry& entry) const;
  bool CouldLeave(const Entry& entry, int64_t now_us) const;
  bool MayDrain(const Entry& entry, int64_t now_us) const;
  std::optional<EvictionCause> WhyUnneeded(CacheId id, const Entry& entry, const std::set<CacheId>& auto_pinned,
                                           int64_t now_us) const;
  void SetDraining(Entry& entry, bool draining, int64_t now_us);
  CacheId HandOut(CacheId id);
  void Leave(CacheId id, EvictionCause cause);
  void Release(CacheId id);

  CacheOptions options_;
  std::map<CacheId, Entry> entries_;
  CacheId next_id_ = 1;
  uint64_t reserved_bytes_ = 0, leaving_bytes_ = 0;
  size_t n_loading_ = 0;
  bool reopened_ = false;
  int64_t latest_us_ = 0;
  CacheStats stats_;
};

}  // namespace df

#endif  // DELTAFOLD_STORE_RESIDENCY_CACHE_H_
