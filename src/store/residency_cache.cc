#include "store/residency_cache.h"

#include <cmath>
#include <numbers>
#include <tuple>

#include "base/check.h"

namespace df {

std::string_view ResidencyStateName(ResidencyState state) {
  switch (state) {
    case ResidencyState::kRegistered: return "registered";
    case ResidencyState::kLoading: return "loading";
    case ResidencyState::kResident: return "resident";
    case ResidencyState::kFailed: return "failed";
  }
  return "registered";
}

std::string_view EvictionCauseName(EvictionCause cause) {
  switch (cause) {
    case EvictionCause::kBudget: return "budget";
    case EvictionCause::kIdle: return "idle";
    case EvictionCause::kOperator: return "operator";
    case EvictionCause::kRetired: return "retired";
  }
  return "budget";
}

CacheId ResidencyCache::Add(const CacheContent& content) {
  DF_CHECK(content.parent == kNoCacheId || entries_.contains(content.parent));
  const CacheId id = next_id_++;
  entries_[id].content = content;
  return id;
}

void ResidencyCache::Retire(CacheId id) {
  Entry& entry = entries_.at(id);
  entry.retired = true;
  entry.pinned = entry.prefetch = false;
}

void ResidencyCache::Revive(CacheId id) {
  Entry& entry = entries_.at(id);
  entry.retired = false;
  if (entry.failure.ok()) return;
  entry.failure = Status::Ok();
  entry.n_failures = 0;
  entry.answered = true;
  entry.since_us = std::min(entry.since_us, latest_us_);
}

void ResidencyCache::Forget(CacheId id) {
  Retire(id);
  Entry& entry = entries_.at(id);
  entry.forgotten = true;
  entry.asked_us = entry.left_us = -1;
  if (entry.phase == Phase::kOut) entries_.erase(id);
}

ResidencyCache::Pins ResidencyCache::PinsOf() const {
  Pins pins;
  for (const auto& [id, entry] : entries_) {
    if (!entry.pinned) continue;
    for (const CacheId one : {id, entry.content.parent}) {
      if (one != kNoCacheId && pins.ids.insert(one).second) pins.bytes += entries_.at(one).content.bytes;
    }
  }
  return pins;
}

// Bytes of everything pinned, of `content` and of all their parents.
uint64_t ResidencyCache::BytesWithPins(const Pins& pins, CacheId id, const CacheContent& content) const {
  uint64_t sum = pins.bytes;
  if (!pins.ids.contains(id)) sum += content.bytes;
  const bool needs_parent = content.parent != kNoCacheId && !pins.ids.contains(content.parent);
  return needs_parent ? sum + entries_.at(content.parent).content.bytes : sum;
}

// `needed_bytes` holds what is pinned, its own and what `beside` names.
Status ResidencyCache::CheckBudget(uint64_t own_bytes, uint64_t needed_bytes, const Pins& pins,
                                   const char* beside) const {
  if (needed_bytes <= options_.budget_bytes) return Status::Ok();
  const auto text = [](uint64_t bytes) { return std::to_string(bytes) + " bytes"; };
  std::string why = "needs " + text(own_bytes);
  if (needed_bytes - pins.bytes != own_bytes) why += ", " + text(needed_bytes - pins.bytes) + " with " + beside;
  if (pins.bytes == 0) {
    why += "; the budget for variants is " + text(options_.budget_bytes) + " (--variant-bytes)";
  } else {
    why += "; what is pinned, and tokenizers, take " + text(pins.bytes) + " of the " + text(options_.budget_bytes) +
           " for variants: unpin something or raise --variant-bytes";
  }
  return ResourceExhausted(std::move(why));
}

Status ResidencyCache::CheckFits(const Pins& pins, CacheId id, const CacheContent& content) const {
  return CheckBudget(content.bytes, BytesWithPins(pins, id, content), pins, "its parent");
}

Status ResidencyCache::CheckFits(const CacheContent& content) const { return CheckFits(PinsOf(), kNoCacheId, content); }

Status ResidencyCache::CheckFits(CacheId id) const { return CheckFits(PinsOf(), id, entries_.at(id).content); }

std::map<CacheId, Status> ResidencyCache::KeptOut() const {
  const Pins pins = PinsOf();
  std::map<CacheId, Status> kept_out;
  for (const auto& [id, entry] : entries_) {
    if (entry.phase != Phase::kOut) continue;
    if (Status fits = CheckFits(pins, id, entry.content); !fits.ok()) kept_out.emplace(id, std::move(fits));
  }
  return kept_out;
}

Status ResidencyCache::CheckCharge(uint64_t bytes) const {
  const Pins pins = PinsOf();
  uint64_t most_bytes = pins.bytes;
  for (const auto& [id, entry] : entries_) {
    if (!entry.retired) most_bytes = std::max(most_bytes, BytesWithPins(pins, id, entry.content));
  }
  return CheckBudget(bytes, bytes + most_bytes, pins, "the largest variant");
}

Status ResidencyCache::SetPinned(CacheId id, bool pinned, int64_t now_us) {
  Entry& entry = entries_.at(id);
  if (entry.pinned == pinned) return Status::Ok();
  if (pinned) {
    DF_RETURN_IF_ERROR(CheckFits(id));
    if (!IsAsked(entry, Now(now_us))) entry.since_us = Now(now_us);
    SetDraining(entry, false, Now(now_us));
  }
  entry.pinned = pinned;
  return Status::Ok();
}

bool ResidencyCache::IsAsked(const Entry& entry, int64_t now_us) const {
  return entry.asked_us >= 0 && now_us - entry.asked_us < options_.interest_us;
}

// Nobody who waited for the load goes without its cause: the first who asks afterwards is told, however late.
bool ResidencyCache::IsFailing(const Entry& entry, int64_t now_us) const {
  return !entry.failure.ok() && now_us < entry.retry_at_us;
}

bool ResidencyCache::HasWantedChild(CacheId id, int64_t now_us) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& other) {
    const Entry& child = other.second;
    if (child.content.parent != id || child.phase != Phase::kOut) return false;
    return IsAsked(child, now_us) || child.pinned || child.prefetch;
  });
}

double ResidencyCache::RateOf(const Entry& entry, int64_t now_us) const {
  return entry.rate *
         std::exp2(-static_cast<double>(now_us - entry.rate_at_us) / static_cast<double>(options_.half_life_us));
}

// What a byte earns: requests it serves, times what each would wait if it were not there.
double ResidencyCache::ScoreOf(const Entry& entry, int64_t now_us) const {
  const auto cost_us = static_cast<double>(std::max<int64_t>(entry.load_us, 1));
  return RateOf(entry, now_us) * cost_us / static_cast<double>(std::max<uint64_t>(entry.reserved_bytes, 1));
}

std::set<CacheId> ResidencyCache::AutoPinned(int64_t now_us) const {
  std::vector<std::tuple<double, int64_t, CacheId>> order;  // ascending: the most wanted, the latest used first
  for (const auto& [id, entry] : entries_) {
    if (entry.phase != Phase::kIn || entry.pinned || entry.retired) continue;
    order.emplace_back(-RateOf(entry, now_us), -entry.last_used_us, id);
  }
  std::sort(order.begin(), order.end());
  if (order.size() > options_.auto_pin) order.resize(options_.auto_pin);
  std::set<CacheId> ids;
  for (const auto& [rate, used, id] : order) ids.insert(id);
  return ids;
}

void ResidencyCache::Ask(Entry& entry, int64_t now_us) {
  const bool comes_back = entry.left_us >= 0 && now_us - entry.left_us < options_.interest_us;
  if (!IsAsked(entry, now_us) && !entry.pinned && !comes_back) entry.since_us = now_us;
  entry.asked_us = now_us;
  entry.left_us = -1;
}

void ResidencyCache::CountRequest(CacheId id, int64_t now_us) {
  now_us = Now(now_us);
  Entry& entry = entries_.at(id);
  ++stats_.lookups;
  if (entry.phase == Phase::kIn && !entry.draining) {
    ++stats_.hits;
    return;
  }
  if (entry.answered && !IsFailing(entry, now_us)) Ask(entry, now_us);
}

// Why nobody can have it now, its own or its parent's; marks the failure as told.
Status ResidencyCache::FailureOf(Entry& entry, int64_t now_us) {
  if (entry.phase == Phase::kOut && !entry.failure.ok()) {
    if (!entry.answered) entry.retry_at_us = std::max(entry.retry_at_us, now_us + 1);
    entry.answered = true;
    if (IsFailing(entry, now_us)) return entry.failure;
  }
  if (entry.phase != Phase::kIn && entry.content.parent != kNoCacheId) {
    return FailureOf(entries_.at(entry.content.parent), now_us);
  }
  return Status::Ok();
}

CacheGrant ResidencyCache::TryLease(CacheId id, int64_t now_us) {
  now_us = Now(now_us);
  Entry& entry = entries_.at(id);
  if (entry.phase == Phase::kIn && !entry.draining) {
    ++entry.n_leases;
    entry.rate = RateOf(entry, now_us) + 1;
    entry.rate_at_us = entry.last_used_us = now_us;
    entry.asked_us = entry.left_us = -1;
    entry.awaited = false;
    return {.granted = true, .failure = {}};
  }
  Status failure = FailureOf(entry, now_us);
  bool kept_out = false;
  if (failure.ok()) {
    failure = CheckFits(id);
    kept_out = !failure.ok();
  }
  if (failure.ok()) {
    Ask(entry, now_us);
  } else {
    entry.asked_us = -1;  // he is told, and waits no more
  }
  return {.granted = false, .failure = std::move(failure), .kept_out = kept_out};
}

void ResidencyCache::EndLease(CacheId id, int64_t now_us) {
  Entry& entry = entries_.at(id);
  DF_CHECK(entry.n_leases > 0);
  --entry.n_leases;
  entry.last_used_us = Now(now_us);
}

void ResidencyCache::EndAsk(CacheId id, int64_t now_us) {
  now_us = Now(now_us);
  Entry& entry = entries_.at(id);
  if (!IsAsked(entry, now_us)) return;
  entry.asked_us = -1;
  entry.left_us = now_us;
}

void ResidencyCache::Prefetch(CacheId id, int64_t now_us) {
  Entry& entry = entries_.at(id);
  if (entry.phase == Phase::kIn || entry.phase == Phase::kLoading || entry.prefetch) return;
  entry.prefetch = true;
  if (!IsAsked(entry, Now(now_us)) && !entry.pinned) entry.since_us = Now(now_us);
}

Status ResidencyCache::Evict(CacheId id, int64_t now_us) {
  Now(now_us);
  Entry& entry = entries_.at(id);
  entry.prefetch = false;
  if (entry.pinned)
    return FailedPrecondition("its weights are pinned, by this name or by one with the same content: unpin that first");
  if (entry.phase == Phase::kLoading) return FailedPrecondition("it is being loaded: try again when it is resident");
  if (entry.phase != Phase::kIn) return Status::Ok();
  if (entry.n_leases > 0) return FailedPrecondition(std::to_string(entry.n_leases) + " requests are running on it");
  if (!entry.children_in.empty()) return FailedPrecondition("it is the parent of resident variants: evict them first");
  Leave(id, EvictionCause::kOperator);
  return Status::Ok();
}

void ResidencyCache::LoadDone(CacheId id, uint64_t bytes, int64_t now_us) {
  now_us = Now(now_us);
  Entry& entry = entries_.at(id);
  DF_CHECK(entry.phase == Phase::kLoading && bytes <= entry.reserved_bytes);
  --n_loading_;
  if (!entry.content.is_charge) ++stats_.loads;
  reserved_bytes_ -= entry.reserved_bytes - bytes;
  entry.reserved_bytes = bytes;
  entry.phase = Phase::kIn;
  entry.in_since_us = now_us;
  entry.load_us = std::max<int64_t>(1, now_us - entry.load_started_us);
  if (!entry.content.is_charge) stats_.load_times.Add(static_cast<double>(entry.load_us) * 1e-6);
  entry.awaited = IsAsked(entry, now_us);
  entry.draining = false;
  entry.failure = Status::Ok();
  entry.n_failures = 0;
}

void ResidencyCache::LoadFailed(CacheId id, Status cause, int64_t now_us) {
  now_us = Now(now_us);
  Entry& entry = entries_.at(id);
  DF_CHECK(entry.phase == Phase::kLoading && !cause.ok());
  --n_loading_;
  ++stats_.load_failures;
  const int doublings = std::min(entry.n_failures, 30);
  ++entry.n_failures;
  entry.retry_at_us = now_us + std::min(options_.longest_backoff_us, options_.first_backoff_us << doublings);
  entry.answered = !IsAsked(entry, now_us) && !HasWantedChild(id, now_us);
  entry.failure = std::move(cause);
  entry.asked_us = entry.left_us = -1;
  if (entry.pinned) entry.since_us = entry.retry_at_us;
  Release(id);
}

void ResidencyCache::Dropped(CacheId id, int64_t now_us) {
  Now(now_us);
  Entry& entry = entries_.at(id);
  DF_CHECK(entry.phase == Phase::kLeaving);
  leaving_bytes_ -= entry.reserved_bytes;
  Release(id);
}

void ResidencyCache::Leave(CacheId id, EvictionCause cause) {
  Entry& entry = entries_.at(id);
  DF_CHECK(CanLeave(entry));
  entry.phase = Phase::kLeaving;
  entry.draining = entry.awaited = false;
  leaving_bytes_ += entry.reserved_bytes;
  if (!entry.content.is_charge) ++stats_.evictions[cause];
}

// Out, with nothing reserved; gone when nobody can ask for it any more.
void ResidencyCache::Release(CacheId id) {
  Entry& entry = entries_.at(id);
  reserved_bytes_ -= entry.reserved_bytes;
  entry.reserved_bytes = 0;
  entry.phase = Phase::kOut;
  entry.handed_out = false;
  if (entry.content.parent != kNoCacheId) entries_.at(entry.content.parent).children_in.erase(id);
  if (entry.forgotten) entries_.erase(id);
}

std::vector<CacheId> ResidencyCache::Ids() const {
  std::vector<CacheId> ids;
  for (const auto& [id, entry] : entries_) ids.push_back(id);
  return ids;
}

CacheEntryView ResidencyCache::View(CacheId id, int64_t now_us) const {
  now_us = std::max(now_us, latest_us_);
  const Entry& entry = entries_.at(id);
  CacheEntryView view = {
      .failure = entry.failure,
      .retry_at_us = entry.retry_at_us,
      .pinned = entry.pinned,
      .retired = entry.retired,
      .leaving = entry.phase == Phase::kLeaving,
      .draining = entry.draining,
      .wanted = IsAsked(entry, now_us),
      .queued = entry.phase != Phase::kIn && entry.phase != Phase::kLoading &&
                (IsAsked(entry, now_us) || entry.prefetch || entry.pinned),
      .queued_since_us = entry.since_us,
      .reserved_bytes = entry.reserved_bytes,
      .n_leases = entry.n_leases,
      .requests_per_s = RateOf(entry, now_us) * std::numbers::ln2 * 1e6 / static_cast<double>(options_.half_life_us),
      .last_used_us = entry.last_used_us,
      .load_us = entry.load_us};
  switch (entry.phase) {
    case Phase::kIn: view.state = ResidencyState::kResident; break;
    case Phase::kLoading: view.state = ResidencyState::kLoading; break;
    case Phase::kOut:
    case Phase::kLeaving:
      view.state = entry.failure.ok() ? ResidencyState::kRegistered : ResidencyState::kFailed;
      break;
  }
  return view;
}

uint64_t ResidencyCache::resident_bytes() const {
  uint64_t sum = 0;
  for (const auto& [id, entry] : entries_) {
    if (entry.phase == Phase::kIn || entry.phase == Phase::kLeaving) sum += entry.reserved_bytes;
  }
  return sum;
}

uint64_t ResidencyCache::charged_bytes() const {
  uint64_t sum = 0;
  for (const auto& [id, entry] : entries_) sum += entry.content.is_charge ? entry.reserved_bytes : 0;
  return sum;
}

bool ResidencyCache::AnyWanted(int64_t now_us) const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [&](const auto& entry) { return IsAsked(entry.second, std::max(now_us, latest_us_)); });
}

}  // namespace df
