// What must hold at the moments when the store begins or ends something.
#include <algorithm>

#include "store.h"

namespace df::simulation {
namespace {

constexpr int64_t kLooksUs = 600'000;  // two ticks of the dropper's and what wakes take

}  // namespace

// I8: one load per generation, as many at once as allowed, and after a failure no sooner than it backs off.
// I9: a child is loaded onto a parent that is there. I11: there is room before a load begins.
void Store::CheckLoadStarts(CacheId id) {
  Verdict& verdict = environment_.verdict;
  const CacheOptions& options = environment_.plan.cache;
  const Books& books = books_.at(id);
  if (books.is_loading || books.is_resident || books.is_dropping) {
    verdict.Break("I8", "a load of " + books.digest + ", which is there or on its way");
  }
  if (n_busy_loaders_ >= options.max_loads) verdict.Break("I8", "more loads at once than there are loaders");
  if (books.n_failures > 0) {
    const int64_t backoff_us =
        std::min(options.longest_backoff_us, options.first_backoff_us << std::min<size_t>(books.n_failures - 1, 30));
    if (latest_us_ < books.failed_us + backoff_us) verdict.Break("I8", books.digest + " does not back off");
  }
  if (books.parent != kNoCacheId && !books_.at(books.parent).is_resident) {
    verdict.Break("I9", "a load of " + books.digest + " without its parent");
  }
  if (held_bytes_ + books.bytes > options.budget_bytes) {
    verdict.Break("I11", "a load of " + books.digest + " begins without room: " + std::to_string(held_bytes_) + " + " +
                             std::to_string(books.bytes) + " of " + std::to_string(options.budget_bytes) + " bytes");
  }
  CheckPrefetch(id);
}

// I7: what nobody waits for is not loaded while somebody waits for room.
void Store::CheckPrefetch(CacheId id) {
  for (const auto& [other, books] : books_) {
    if ((other == id || books.parent == id) && IsWanted(other, books)) return;
  }
  const uint64_t free_bytes = BytesAtOnce() + books_.at(id).bytes;
  for (const auto& [other, books] : books_) {
    const CacheEntryView view = cache_.View(other, latest_us_);
    const bool backs_off = !view.failure.ok() && latest_us_ < view.retry_at_us;
    const bool has_parent = books.parent == kNoCacheId || books_.at(books.parent).is_resident;
    const bool waits = IsWanted(other, books) && !books.is_loading && !books.is_dropping && has_parent;
    if (!waits || backs_off || books.bytes <= free_bytes || !cache_.CheckFits(other).ok()) continue;
    environment_.verdict.Break(
        "I7", books_.at(id).digest + " is prefetched while requests wait for room for " + books.digest);
  }
}

// I7: no loader is idle while there is room for all that could be loaded.
void Store::CheckLoadersIdle() {
  if (n_busy_loaders_ >= environment_.plan.cache.max_loads) return;
  const uint64_t free_bytes = cache_.budget_bytes() - cache_.reserved_bytes();
  CheckNobodyIsHeldUp(free_bytes);
  std::string loadable;
  for (const auto& [id, books] : books_) {
    const CacheEntryView view = cache_.View(id, latest_us_);
    if (view.leaving) return;
    const bool backs_off = !view.failure.ok() && latest_us_ < view.retry_at_us;
    if (!view.queued || backs_off || !cache_.CheckFits(id).ok()) continue;
    const bool has_parent = books.parent == kNoCacheId || books_.at(books.parent).is_resident;
    if (!has_parent || books.bytes > free_bytes) return;
    loadable = books.digest;
  }
  if (!loadable.empty()) environment_.verdict.Break("I7", "a loader is idle, and there is room for " + loadable);
}

// I7: who fits into what is free is not held up by those who have to wait for others' leases, unless one has done so
// for long. (Where parents are to be loaded first, or pins wait, who is before whom is not told here.)
void Store::CheckNobodyIsHeldUp(uint64_t free_bytes) {
  const uint64_t at_once_bytes = BytesAtOnce();
  const Books* fitting = nullptr;
  int64_t since_us = 0;
  for (const bool looks_for_fitting : {true, false}) {
    for (const auto& [id, books] : books_) {
      const CacheEntryView view = cache_.View(id, latest_us_);
      const bool backs_off = !view.failure.ok() && latest_us_ < view.retry_at_us;
      if (!view.queued || view.leaving || backs_off || !cache_.CheckFits(id).ok()) continue;
      if (view.pinned || books.parent != kNoCacheId) return;
      if (looks_for_fitting) {
        const bool is_first = fitting == nullptr || view.queued_since_us < since_us;
        if (!view.wanted || books.bytes > free_bytes || !is_first) continue;
        fitting = &books;
        since_us = view.queued_since_us;
      } else if (view.wanted && view.queued_since_us <= since_us && &books != fitting) {
        const bool is_aged = latest_us_ - view.queued_since_us >= environment_.plan.cache.overtake_us;
        if (is_aged || books.bytes <= at_once_bytes) return;
      }
    }
    if (fitting == nullptr) return;
  }
  environment_.verdict.Break("I7",
                             "there is room for " + fitting->digest + ", and a loader, and it waits behind others");
}

// I7: what takes no leases is in the way of somebody.
void Store::CheckClosed() {
  const auto is_wanted = [this](const auto& one) { return IsWanted(one.first, one.second); };
  if (std::any_of(books_.begin(), books_.end(), is_wanted)) return;
  for (const auto& [id, books] : books_) {
    const CacheEntryView view = cache_.View(id, latest_us_);
    if (view.draining && books.n_leases > 0) {
      environment_.verdict.Break("I7", books.digest + " takes no leases, and nobody waits for its room");
    }
  }
}

// I9: what goes is neither leased, nor pinned, nor the parent of what is there. I7: nor what is in use, for nobody.
void Store::CheckDropStarts(CacheId id) {
  Verdict& verdict = environment_.verdict;
  const Books& books = books_.at(id);
  if (!books.is_resident) verdict.Break("I9", books.digest + " goes and is not there");
  if (books.n_leases > 0) verdict.Break("I9", books.digest + " goes and is leased");
  for (const auto& variant : registry_.List()) {
    if (!books.is_evicted && variant->generation != nullptr && Of(*variant).id() == id && IsPinned(variant->name)) {
      verdict.Break("I9", books.digest + " goes and is pinned as " + variant->name);
    }
  }
  for (const auto& [other, child] : books_) {
    if (child.parent == id && (child.is_loading || child.is_resident)) {
      verdict.Break("I9", books.digest + " goes and is the parent of " + child.digest);
    }
  }
  const CacheOptions& options = environment_.plan.cache;
  const int64_t unused_us = latest_us_ - std::max(books.used_us, books.loaded_us);
  const bool is_idle = options.idle_timeout_us != 0 && unused_us >= options.idle_timeout_us;
  const bool is_wanted = std::any_of(books_.begin(), books_.end(),
                                     [this](const auto& other) { return IsWanted(other.first, other.second); });
  if (is_wanted || is_idle || books.is_evicted || cache_.View(id, latest_us_).retired) return;
  if (unused_us + kLooksUs / 1000 < options.patience_us) {
    verdict.Break("I7", books.digest + " goes for a prefetch, " + std::to_string(unused_us) +
                            " us after its last use, not " + std::to_string(options.patience_us));
  }
}

// I4: when the dropper has nothing to do, nothing is there that no name and no request stands for.
void Store::CheckNothingIsLeft() {
  std::set<CacheId> needed;
  for (const auto& variant : registry_.List()) {
    if (!variant->IsBase()) needed.insert(Of(*variant).id());
  }
  for (const auto& [id, books] : books_) {
    if (books.parent != kNoCacheId) needed.insert(books.parent);
  }
  for (const auto& [id, books] : books_) {
    if (!books.is_resident || books.n_leases > 0 || needed.contains(id)) continue;
    if (!cache_.View(id, latest_us_).wanted) {
      environment_.verdict.Break("I4", books.digest + " stays, which nobody names, leases or waits for");
    }
  }
}

// I7: whoever waits for weights gets its turn whatever others do. Those who wait are served in order; each, its parent
// before it, waits at most for: those who overtake it, what was loaded for others (interest), leases to drain
// (patience, since it came and since the drained ones came), their end, a load, drops, and the threads that look.
void Store::CheckProgress() {
  const CacheOptions& options = environment_.plan.cache;
  const int64_t now_us = environment_.now_us();
  const int64_t place_us = options.overtake_us + options.interest_us + 2 * options.patience_us + longest_lease_us() +
                           longest_load_us_ + kLooksUs;
  for (const auto& [id, books] : books_) {
    if (books.asked_us < 0 || now_us - books.last_asked_us >= options.interest_us) continue;
    const int64_t n_places = static_cast<int64_t>(most_generations_) + (books.parent == kNoCacheId ? 0 : 1);
    const int64_t bound_us = (has_parents_ ? 2 : 1) * n_places * place_us;
    const int64_t waited_us = environment_.awake_us() - books.asked_awake_us;
    if (books.is_resident || waited_us <= bound_us) continue;
    environment_.verdict.Break("I7", "requests wait for " + books.digest + " for " + std::to_string(waited_us) +
                                         " us, the bound is " + std::to_string(bound_us));
  }
}

}  // namespace df::simulation
