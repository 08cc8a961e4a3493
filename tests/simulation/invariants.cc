#include "invariants.h"

#include <map>
#include <set>
#include <string>
#include <vector>

namespace df::simulation {
namespace {

// I2: what shares keys and values has equal base, generation and salt, however they are spelled.
void CheckDomains(const View& view) {
  std::set<std::string> texts;
  const std::vector<std::string> spellings = {"", "a", "b", "ab", "a+b"};
  size_t n = 0;
  for (const std::string& base : spellings) {
    for (const std::string& generation : spellings) {
      for (const std::string& salt : spellings) {
        ++n;
        texts.insert(
            MakePrefixDomain(
                {.base_fingerprint = base, .kv_dtype = "bf16", .generation_digest = generation, .cache_salt = salt})
                ->text);
      }
    }
  }
  if (texts.size() != n) view.environment.verdict.Break("I2", "two domains of cached blocks have one text");
}

// I8: no more loads at once than allowed, each of another generation (a second of one stops at its start).
void CheckLoads(const View& view) {
  size_t n_loading = 0;
  for (const auto& [id, books] : view.store.books()) n_loading += books.is_loading ? 1 : 0;
  if (n_loading != view.store.cache().n_loading() || n_loading > view.environment.plan.cache.max_loads) {
    view.environment.verdict.Break("I8", std::to_string(n_loading) + " loads are under way, counted are " +
                                             std::to_string(view.store.cache().n_loading()));
  }
}

// I9: what is leased is there, and so are those that what is there was loaded onto.
void CheckLeased(const View& view) {
  for (const auto& [id, books] : view.store.books()) {
    if (books.n_leases > 0 && !books.is_resident) {
      view.environment.verdict.Break("I9", books.digest + " is leased and not there");
    }
    const bool needs_parent = books.parent != kNoCacheId && (books.is_loading || books.is_resident);
    if (needs_parent && !view.store.books().at(books.parent).is_resident) {
      view.environment.verdict.Break("I9", books.digest + " is there without its parent");
    }
  }
}

// I11: what is held was reserved, and what is reserved is within the budget.
void CheckBytes(const View& view) {
  const ResidencyCache& cache = view.store.cache();
  if (cache.reserved_bytes() > cache.budget_bytes() || view.store.held_bytes() > cache.reserved_bytes()) {
    view.environment.verdict.Break("I11", std::to_string(view.store.held_bytes()) + " bytes are held, " +
                                              std::to_string(cache.reserved_bytes()) + " reserved of " +
                                              std::to_string(cache.budget_bytes()));
  }
}

// I11: what the operator pinned fits the budget together with what it sits on.
void CheckPins(const View& view) {
  std::map<CacheId, uint64_t> pinned;
  for (const auto& variant : view.store.registry().List()) {
    if (variant->IsBase() || !view.store.IsPinned(variant->name)) continue;
    const CacheId id = Store::IdOf(*variant->generation);
    const Books& books = view.store.books().at(id);
    pinned[id] = books.bytes;
    if (books.parent != kNoCacheId) pinned[books.parent] = view.store.books().at(books.parent).bytes;
    if (!view.store.cache().View(id, 0).pinned) {
      view.environment.verdict.Break("I9", variant->name + " is pinned and its generation is not");
    }
  }
  uint64_t sum = 0;
  for (const auto& [generation, bytes] : pinned) sum += bytes;
  if (sum > view.store.cache().budget_bytes()) {
    view.environment.verdict.Break("I11", "pinned are " + std::to_string(sum) + " bytes");
  }
}

// I12: every request that was taken is in exactly one place.
void CheckCounts(const View& view) {
  const size_t n_scheduled = view.engine.scheduler().n_waiting() + view.engine.scheduler().n_running();
  if (n_scheduled != view.engine.live().size()) {
    view.environment.verdict.Break("I12", std::to_string(n_scheduled) + " requests are scheduled, " +
                                              std::to_string(view.engine.live().size()) + " have not ended");
  }
}

// I12: every block is free or held by somebody who is here; those who wait or were preempted hold none.
void CheckBlocks(const View& view) {
  std::vector<int32_t> held;
  for (const auto& [arrival, live] : view.engine.live()) {
    const Sequence& sequence = *live.sequence;
    held.insert(held.end(), sequence.kv.block_table(), sequence.kv.block_table() + sequence.kv.n_blocks());
    if (sequence.ticket == 0 && sequence.kv.n_blocks() > 0) {
      view.environment.verdict.Break("I12", "request " + sequence.request.id + " waits and holds blocks");
    }
    if (sequence.n_cached > sequence.kv.n_blocks() * kernels::kKvBlockTokens) {
      view.environment.verdict.Break("I12", "request " + sequence.request.id + " has tokens cached without blocks");
    }
  }
  if (std::string wrong = view.engine.blocks().Audit(held); !wrong.empty()) {
    view.environment.verdict.Break("I12", std::move(wrong));
  }
}

// I12: every lease belongs to somebody who is here: one each, and a claim for each variant that requests wait for.
void CheckLeases(const View& view) {
  std::map<CacheId, uint64_t> held;
  std::set<CacheId> waited_for;
  uint64_t n_waiting = 0;
  for (const auto& [arrival, live] : view.engine.live()) {
    const Sequence& sequence = *live.sequence;
    if (sequence.request.variant == nullptr) continue;
    const CacheId id = Store::IdOf(*sequence.request.variant);
    if (sequence.lease.weights() != nullptr) ++held[id];
    if (sequence.ticket != 0) continue;
    waited_for.insert(id);
    if (sequence.lease.weights() != nullptr) ++n_waiting;
  }
  if (n_waiting > 1) view.environment.verdict.Break("I12", "several that wait hold leases");
  for (const auto& [id, books] : view.store.books()) {
    const uint64_t least = held[id], most = least + (waited_for.contains(id) ? 1 : 0);
    if (books.n_leases >= least && books.n_leases <= most) continue;
    view.environment.verdict.Break("I12", std::to_string(books.n_leases) + " leases of " + books.digest + " are out, " +
                                              std::to_string(least) + " belong to somebody");
  }
}

// What the cache says of itself.
void CheckCache(const View& view) {
  if (std::string wrong = view.store.cache().CheckInvariants(); !wrong.empty()) {
    view.environment.verdict.Break("cache", std::move(wrong));
  }
}

}  // namespace

void CheckInvariants(const View& view) {
  if (!view.environment.verdict.ok()) return;
  view.names.CheckNames();
  CheckLoads(view);
  CheckLeased(view);
  CheckBytes(view);
  CheckPins(view);
  CheckCounts(view);
  CheckBlocks(view);
  CheckLeases(view);
  CheckCache(view);
}

void CheckDrained(const View& view) {
  CheckDomains(view);
  if (view.engine.blocks().n_free() != view.engine.blocks().n_total() || view.store.n_leases() != 0) {
    view.environment.verdict.Break("I12", "all requests have ended, and blocks or leases are out");
  }
}

void CheckNothingHeld(const View& view) {
  if (view.store.held_bytes() != 0 || view.store.cache().reserved_bytes() != 0 || !view.store.books().empty()) {
    view.environment.verdict.Break("I12", std::to_string(view.store.cache().reserved_bytes()) +
                                              " bytes stay reserved when no name and no request is left");
  }
}

}  // namespace df::simulation
