// ResidencyCache's plan of rooms: which bytes those who wait for a load get, and from whom. It is made anew for every
// choice, of nothing but the state of that moment, so whatever changes in between needs no undoing.
//
// In the order of waiting each of them takes
//   1. what is free: it can be loaded now;
//   2. and what is leaving: soon;
//   3. and what nobody leases, lowest score first: those go now;
//   4. and, having waited for `patience_us`, what others lease: those take no new leases (they are closed) and go when
//      all of them have none.
// In 1 to 3 the room is its own. In 4 it is so once it has waited for `overtake_us`: then others get what the room
// has over, and before that whatever they can use at once. At a time there are as many rooms of either sort as loaders.
//
// So nobody waits longer, once first in the order, than
//   overtake_us + max(interest_us, patience_us) + the longest lease + drops + the threads that look:
// once overtake_us is over nothing is loaded into what it could have; by then, or interest_us or patience_us later, all
// that is not pinned may be closed, and stays closed, as those closed before are chosen first; their leases end.
#include <tuple>
#include <utility>

#include "base/check.h"
#include "store/residency_cache.h"

namespace df {

// What may have to go for others.
struct ResidencyCache::Candidate {
  CacheId id = kNoCacheId;
  const Entry* entry = nullptr;
  bool is_leased = false;  // itself or a child of its: somebody has to be waited for
};

// What former rooms have left over, in the order of waiting.
struct ResidencyCache::Claims {
  uint64_t free_bytes = 0, coming_bytes = 0;  // now; once those who leave have gone
  std::vector<Candidate> candidates = {};     // in the order in which they go
  bool has_candidates = false;                // they were looked for
  std::set<CacheId> taken = {};               // of them
  std::set<CacheId> kept = {};                // parents of what there is a room for
  size_t n_at_once = 0, n_over_leases = 0;    // rooms
  bool somebody_waits = false;                // without a room that needs no lease to end
};

// Whether room may be made of it without waiting for anybody, its children going first. What was loaded for somebody
// stays until it was leased once or is asked for no more.
bool ResidencyCache::CouldLeave(const Entry& entry, int64_t now_us) const {
  if (entry.phase == Phase::kLeaving) return true;
  if (entry.phase != Phase::kIn || entry.pinned || entry.n_leases > 0 || IsAwaited(entry, now_us)) return false;
  return std::all_of(entry.children_in.begin(), entry.children_in.end(),
                     [&](CacheId child) { return CouldLeave(entries_.at(child), now_us); });
}

// Whether it may be closed: not one that has just come.
bool ResidencyCache::MayDrain(const Entry& entry, int64_t now_us) const {
  if (entry.pinned || IsAwaited(entry, now_us) || now_us - entry.in_since_us < options_.patience_us) return false;
  return std::all_of(entry.children_in.begin(), entry.children_in.end(), [&](CacheId child) {
    const Entry& other = entries_.at(child);
    return other.phase == Phase::kLeaving || (other.phase == Phase::kIn && MayDrain(other, now_us));
  });
}

// Of those that nobody leases the auto-pinned go last; of the others those go first that are closed already.
std::vector<ResidencyCache::Candidate> ResidencyCache::CandidatesInOrder(int64_t now_us) const {
  const std::set<CacheId> auto_pinned = AutoPinned(now_us);
  std::vector<std::tuple<bool, double, int64_t, CacheId, bool>> order;  // goes last, score, last used, id, is leased
  for (const auto& [id, entry] : entries_) {
    if (entry.phase != Phase::kIn) continue;
    const bool is_leased = !CouldLeave(entry, now_us);
    if (is_leased && !MayDrain(entry, now_us)) continue;
    const bool goes_last = is_leased ? !entry.draining : auto_pinned.contains(id);
    order.emplace_back(goes_last, ScoreOf(entry, now_us), entry.last_used_us, id, is_leased);
  }
  std::sort(order.begin(), order.end());
  std::vector<Candidate> candidates;
  for (const auto& [goes_last, score, used_us, id, is_leased] : order) {
    candidates.push_back({.id = id, .entry = &entries_.at(id), .is_leased = is_leased});
  }
  return candidates;
}

// Takes the first of those that are leased, or not, children before their parents, until they hold `missing_bytes` or
// there are no more. Returns what they hold.
uint64_t ResidencyCache::Choose(const Choice& choice, uint64_t missing_bytes, Claims& claims,
                                std::vector<const Candidate*>& chosen) const {
  const auto may_go = [&](const Candidate& candidate) {
    const Entry& entry = *candidate.entry;
    if (candidate.is_leased != choice.leased || claims.taken.contains(candidate.id)) return false;
    if (claims.kept.contains(candidate.id) || std::max(entry.last_used_us, entry.in_since_us) > choice.unused_since_us)
      return false;
    return std::all_of(entry.children_in.begin(), entry.children_in.end(), [&](CacheId child) {
      return entries_.at(child).phase == Phase::kLeaving || claims.taken.contains(child);
    });
  };
  uint64_t sum = 0;
  while (sum < missing_bytes) {
    const auto next = std::find_if(claims.candidates.begin(), claims.candidates.end(), may_go);
    if (next == claims.candidates.end()) break;
    claims.taken.insert(next->id);
    chosen.push_back(&*next);
    sum += next->entry->reserved_bytes;
  }
  return sum;
}

// Steps 1 to 3. False when leases are in the way.
bool ResidencyCache::PlanAtOnce(const Wanted& wanted, int64_t now_us, Claims& claims, RoomPlan& plan) const {
  const uint64_t bytes = entries_.at(wanted.load).content.bytes;
  if (bytes <= claims.free_bytes) {
    if (plan.load == kNoCacheId) plan.load = wanted.load;
    claims.free_bytes -= bytes;
    return true;
  }
  const uint64_t had_bytes = claims.free_bytes + claims.coming_bytes;
  if (bytes > had_bytes && !std::exchange(claims.has_candidates, true)) claims.candidates = CandidatesInOrder(now_us);
  std::vector<const Candidate*> victims;
  const Choice choice = {.leased = false, .unused_since_us = wanted.is_asked ? now_us : now_us - options_.patience_us};
  const uint64_t missing_bytes = bytes - std::min(bytes, had_bytes);
  const uint64_t chosen_bytes = Choose(choice, missing_bytes, claims, victims);
  if (chosen_bytes < missing_bytes) {
    for (const Candidate* victim : victims) claims.taken.erase(victim->id);
    return false;
  }
  for (const Candidate* victim : victims) {
    plan.victims.push_back(victim->id);
    plan.closed.insert(victim->id);
  }
  claims.free_bytes = 0;
  claims.coming_bytes = had_bytes + chosen_bytes - bytes;
  return true;
}

// Step 4.
void ResidencyCache::PlanOverLeases(const Wanted& wanted, int64_t now_us, Claims& claims, RoomPlan& plan) const {
  const uint64_t bytes = entries_.at(wanted.load).content.bytes;
  const uint64_t had_bytes = claims.free_bytes + claims.coming_bytes;
  const uint64_t missing_bytes = bytes - had_bytes;
  std::vector<const Candidate*> idle, leased;
  uint64_t sum = Choose({.leased = false, .unused_since_us = now_us}, missing_bytes, claims, idle);
  sum += Choose({.leased = true, .unused_since_us = now_us}, missing_bytes - sum, claims, leased);
  // Where the leased ones do: but a child goes with its parent.
  while (!idle.empty() && sum - idle.back()->entry->reserved_bytes >= missing_bytes &&
         !claims.taken.contains(idle.back()->entry->content.parent)) {
    sum -= idle.back()->entry->reserved_bytes;
    claims.taken.erase(idle.back()->id);
    idle.pop_back();
  }
  for (const Candidate* one : leased) plan.closed.insert(one->id);
  for (const Candidate* one : idle) plan.closed.insert(one->id);
  if (now_us - wanted.since_us < options_.overtake_us) {
    for (const Candidate* one : idle) claims.taken.erase(one->id);
    return;
  }
  const uint64_t over_bytes = had_bytes + sum - std::min(bytes, had_bytes + sum);
  claims.free_bytes = std::min(claims.free_bytes, over_bytes);
  claims.coming_bytes = std::min(claims.coming_bytes, over_bytes - claims.free_bytes);
}

ResidencyCache::RoomPlan ResidencyCache::PlanRooms(int64_t now_us) const {
  RoomPlan plan;
  Claims claims = {.free_bytes = options_.budget_bytes - reserved_bytes_, .coming_bytes = leaving_bytes_};
  std::set<CacheId> planned;
  for (const Wanted& wanted : WantedInOrder(now_us)) {
    if (claims.n_at_once >= options_.max_loads || (!wanted.is_asked && claims.somebody_waits)) break;
    if (!planned.insert(wanted.load).second) continue;  // the parent of one before it as well
    claims.kept.insert(entries_.at(wanted.load).content.parent);
    if (PlanAtOnce(wanted, now_us, claims, plan)) {
      ++claims.n_at_once;
      continue;
    }
    claims.somebody_waits |= wanted.is_asked;
    const bool is_patient = !wanted.is_asked || now_us - wanted.since_us < options_.patience_us;
    if (is_patient || claims.n_over_leases >= options_.max_loads) continue;
    PlanOverLeases(wanted, now_us, claims, plan);
    ++claims.n_over_leases;
  }
  return plan;
}

}  // namespace df
