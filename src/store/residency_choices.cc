// ResidencyCache's choices: what is loaded next and what has to go.
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
ResidencyCache::Wanted ResidencyCache::NextWanted(int64_t now_us) const {
  using Order = std::tuple<bool, int64_t, CacheId>;  // nobody waits, since, id
  std::optional<Order> first;
  Wanted next;
  for (const auto& [id, entry] : entries_) {
    const bool is_asked = entry.pinned || IsAsked(entry, now_us);
    if (entry.phase != Phase::kOut || (!is_asked && !entry.prefetch) || IsFailing(entry, now_us)) continue;
    const Order order = {!is_asked, entry.since_us, id};
    if (first && *first < order) continue;
    if (!CheckFits(id).ok()) continue;
    const CacheId load = LoadFor(id, entry, now_us);
    if (load == kNoCacheId) continue;
    first = order;
    next = {.load = load, .waiter = id};
  }
  return next;
}

std::optional<CacheId> ResidencyCache::NextLoad(int64_t now_us) {
  now_us = Now(now_us);
  if (n_loading_ >= options_.max_loads) return std::nullopt;
  const CacheId id = NextWanted(now_us).load;
  if (id == kNoCacheId) return std::nullopt;
  Entry& entry = entries_.at(id);
  if (options_.budget_bytes - reserved_bytes_ < entry.content.bytes) return std::nullopt;
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

// Whether room may be made of it without waiting for anybody, its children going first. `needed` stays: the parent of
// what the room is for. What was loaded for somebody stays until it was leased once or is asked for no more.
bool ResidencyCache::CouldLeave(CacheId id, const Entry& entry, CacheId needed, int64_t now_us) const {
  if (entry.phase == Phase::kLeaving) return true;
  if (entry.phase != Phase::kIn || entry.pinned || entry.n_leases > 0 || id == needed) return false;
  if (IsAwaited(entry, now_us)) return false;
  return std::all_of(entry.children_in.begin(), entry.children_in.end(),
                     [&](CacheId child) { return CouldLeave(child, entries_.at(child), needed, now_us); });
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
  const CacheId victim = ChooseForRoom(auto_pinned, now_us);
  if (victim == kNoCacheId) return std::nullopt;
  Leave(victim, EvictionCause::kBudget);
  return HandOut(victim);
}

CacheId ResidencyCache::HandOut(CacheId id) {
  entries_.at(id).handed_out = true;
  return id;
}

// The next to go for the first in the queue; none when it has room, will have it when others have left, or has to wait.
CacheId ResidencyCache::ChooseForRoom(const std::set<CacheId>& auto_pinned, int64_t now_us) {
  const Wanted wanted = NextWanted(now_us);
  const Entry* target = wanted.load == kNoCacheId ? nullptr : &entries_.at(wanted.load);
  const uint64_t free_bytes = options_.budget_bytes - reserved_bytes_;
  if (target == nullptr || target->content.bytes <= free_bytes + leaving_bytes_) {
    for (auto& [id, entry] : entries_) SetDraining(entry, false, now_us);
    return kNoCacheId;
  }
  const uint64_t missing_bytes = target->content.bytes - free_bytes - leaving_bytes_;
  uint64_t evictable_bytes = 0;
  std::optional<std::tuple<bool, double, int64_t, CacheId>> first;  // auto-pinned, score, last used
  for (const auto& [id, entry] : entries_) {
    if (entry.phase != Phase::kIn || !CouldLeave(id, entry, target->content.parent, now_us)) continue;
    evictable_bytes += entry.reserved_bytes;
    if (!CanLeave(entry)) continue;  // its children first
    const std::tuple order(auto_pinned.contains(id), ScoreOf(entry, now_us), entry.last_used_us, id);
    if (!first || order < *first) first = order;
  }
  if (evictable_bytes >= missing_bytes) return first ? std::get<CacheId>(*first) : kNoCacheId;
  Drain(wanted, missing_bytes - evictable_bytes, now_us);
  return kNoCacheId;
}

// Leased ones that take no new leases until there is room: the same as before first, then by score. Only a request or a
// pin that has waited long enough does that to others, and not to one that has just come.
void ResidencyCache::Drain(const Wanted& wanted, uint64_t missing_bytes, int64_t now_us) {
  const CacheId needed = entries_.at(wanted.load).content.parent;
  std::vector<std::tuple<bool, double, CacheId>> order;
  for (const auto& [id, entry] : entries_) {
    if (entry.phase == Phase::kIn && id != needed && MayDrain(entry, now_us) &&
        !CouldLeave(id, entry, needed, now_us)) {
      order.emplace_back(!entry.draining, ScoreOf(entry, now_us), id);
    }
  }
  std::sort(order.begin(), order.end());
  const Entry& waiter = entries_.at(wanted.waiter);
  const bool is_asked = waiter.pinned || IsAsked(waiter, now_us);
  if (!is_asked || now_us - waiter.since_us < options_.patience_us) order.clear();
  std::set<CacheId> chosen;
  for (const auto& [is_next, score, id] : order) {
    if (missing_bytes == 0) break;
    const Entry& entry = entries_.at(id);
    chosen.insert(id);
    chosen.insert(entry.children_in.begin(), entry.children_in.end());
    missing_bytes -= std::min(missing_bytes, entry.reserved_bytes);
  }
  for (auto& [id, entry] : entries_) {
    SetDraining(entry, entry.phase == Phase::kIn && chosen.contains(id), now_us);
  }
}

void ResidencyCache::SetDraining(Entry& entry, bool draining, int64_t now_us) {
  if (entry.draining && !draining && IsAsked(entry, now_us)) reopened_ = true;
  entry.draining = draining;
}

bool ResidencyCache::MayDrain(const Entry& entry, int64_t now_us) const {
  if (entry.pinned || IsAwaited(entry, now_us) || now_us - entry.in_since_us < options_.patience_us) return false;
  return std::all_of(entry.children_in.begin(), entry.children_in.end(), [&](CacheId child) {
    const Entry& other = entries_.at(child);
    return other.phase == Phase::kLeaving || (other.phase == Phase::kIn && MayDrain(other, now_us));
  });
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
