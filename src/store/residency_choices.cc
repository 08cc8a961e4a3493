// ResidencyCache's choices: what is loaded next and what has to go. Whose room it is: residency_rooms.cc.
#include <tuple>

#include "base/check.h"
#include "store/residency_cache.h"

namespace df {

// What has to be loaded next for `id`: itself or its parent; none while the parent is on its way, in or out.
CacheId ResidencyCache::LoadFor(CacheId id, const Entry& entry, int64_t now_us) const {
  if (entry.content.parent == kNoCacheId) return id;
  const Entry& parent = entries_.at(entry.content.parent);
  if (parent.phase == Phase::kIn) return id;
  return parent.phase == Phase::kOut && !IsFailing(parent, now_us) ? entry.content.parent : kNoCacheId;
}

// In order of waiting; those whom nobody waits for come last.
std::vector<ResidencyCache::Wanted> ResidencyCache::WantedInOrder(int64_t now_us) const {
  const Pins pins = PinsOf();
  std::vector<std::tuple<bool, int64_t, CacheId, CacheId>> order;  // nobody waits, since, id, what to load
  for (const auto& [id, entry] : entries_) {
    const bool is_asked = entry.pinned || IsAsked(entry, now_us);
    if (entry.phase != Phase::kOut || (!is_asked && !entry.prefetch) || IsFailing(entry, now_us)) continue;
    if (BytesWithPins(pins, id, entry.content) > options_.budget_bytes) continue;
    const CacheId load = LoadFor(id, entry, now_us);
    if (load != kNoCacheId) order.emplace_back(!is_asked, entry.since_us, id, load);
  }
  std::sort(order.begin(), order.end());
  std::vector<Wanted> wanted;
  for (const auto& [is_prefetched, since_us, id, load] : order) {
    wanted.push_back({.load = load, .is_asked = !is_prefetched, .since_us = since_us});
  }
  return wanted;
}

std::optional<CacheId> ResidencyCache::NextLoad(int64_t now_us) {
  now_us = Now(now_us);
  if (n_loading_ >= options_.max_loads) return std::nullopt;
  const CacheId id = PlanRooms(now_us).load;
  if (id == kNoCacheId) return std::nullopt;
  Entry& entry = entries_.at(id);
  if (entry.content.parent != kNoCacheId) entries_.at(entry.content.parent).children_in.insert(id);
  reserved_bytes_ += entry.content.bytes;
  entry.reserved_bytes = entry.content.bytes;
  entry.phase = Phase::kLoading;
  entry.load_started_us = now_us;
  entry.prefetch = false;
  ++n_loading_;
  return id;
}

bool ResidencyCache::CanLeave(const Entry& entry) const {
  return entry.phase == Phase::kIn && !entry.pinned && entry.n_leases == 0 && entry.children_in.empty();
}

std::optional<EvictionCause> ResidencyCache::WhyUnneeded(CacheId id, const Entry& entry,
                                                         const std::set<CacheId>& auto_pinned, int64_t now_us) const {
  if (!CanLeave(entry)) return std::nullopt;
  if (entry.forgotten) return EvictionCause::kRetired;
  const int64_t idle_us = now_us - std::max(entry.last_used_us, entry.in_since_us);
  const bool is_idle =
      options_.idle_timeout_us != 0 && idle_us >= options_.idle_timeout_us && !auto_pinned.contains(id);
  if (!entry.retired && !is_idle) return std::nullopt;
  if (IsAsked(entry, now_us) || HasWantedChild(id, now_us)) return std::nullopt;
  return entry.retired ? EvictionCause::kRetired : EvictionCause::kIdle;
}

std::optional<CacheId> ResidencyCache::NextDrop(int64_t now_us) {
  now_us = Now(now_us);
  const RoomPlan plan = PlanRooms(now_us);
  for (auto& [id, entry] : entries_) SetDraining(entry, plan.closed.contains(id), now_us);
  for (const auto& [id, entry] : entries_) {
    // Those that an operator evicted, and those handed out before and not yet reported, are leaving already.
    if (entry.phase == Phase::kLeaving && !entry.handed_out) return HandOut(id);
  }
  const std::set<CacheId> auto_pinned = AutoPinned(now_us);
  for (const auto& [id, entry] : entries_) {
    const std::optional<EvictionCause> cause = WhyUnneeded(id, entry, auto_pinned, now_us);
    if (!cause) continue;
    Leave(id, *cause);
    return HandOut(id);
  }
  for (const CacheId victim : plan.victims) {
    if (!CanLeave(entries_.at(victim))) continue;  // its children first
    Leave(victim, EvictionCause::kBudget);
    return HandOut(victim);
  }
  return std::nullopt;
}

CacheId ResidencyCache::HandOut(CacheId id) {
  entries_.at(id).handed_out = true;
  return id;
}

void ResidencyCache::SetDraining(Entry& entry, bool draining, int64_t now_us) {
  if (entry.draining && !draining && IsAsked(entry, now_us)) reopened_ = true;
  entry.draining = draining;
}

std::string ResidencyCache::CheckInvariants() const {
  uint64_t reserved = 0, leaving = 0;
  size_t n_loading = 0;
  for (const auto& [id, entry] : entries_) {
    const std::string name = "generation " + std::to_string(id);
    reserved += entry.reserved_bytes;
    if (entry.phase == Phase::kLeaving) leaving += entry.reserved_bytes;
    if (entry.phase == Phase::kLoading) ++n_loading;
    if (entry.phase != Phase::kIn && entry.n_leases > 0) return name + " is leased and not resident (I9)";
    if (entry.phase != Phase::kIn && entry.phase != Phase::kLoading && !entry.children_in.empty()) {
      return name + " is not resident, its child is (I9)";
    }
    if (entry.phase == Phase::kOut && entry.reserved_bytes > 0) return name + " is out and holds a reservation (I12)";
    if (entry.reserved_bytes > entry.content.bytes) return name + " holds more than its reservation (I11)";
    if (entry.retired && entry.pinned) return name + " has no name and is pinned";
    if (entry.forgotten && entry.phase == Phase::kOut) return name + " is forgotten and still known (I4)";
    if (entry.draining && entry.pinned) return name + " is pinned and drains (I9)";
    for (const CacheId child : entry.children_in) {
      const auto found = entries_.find(child);
      if (found == entries_.end() || found->second.content.parent != id || found->second.phase == Phase::kOut) {
        return name + " is held by " + std::to_string(child) + ", which is no resident child";
      }
    }
    if (entry.phase != Phase::kOut && entry.content.parent != kNoCacheId) {
      const auto parent = entries_.find(entry.content.parent);
      if (parent == entries_.end() || !parent->second.children_in.contains(id))
        return name + " does not hold its parent";
    }
  }
  if (reserved != reserved_bytes_) return "the reservations sum up to another number than the one kept (I11)";
  if (leaving != leaving_bytes_) return "what leaves sums up to another number than the one kept (I11)";
  if (reserved > options_.budget_bytes) return "more is reserved than the budget (I11)";
  if (n_loading != n_loading_ || n_loading > options_.max_loads) return "too many loads, or miscounted (I8)";
  return "";
}

}  // namespace df
