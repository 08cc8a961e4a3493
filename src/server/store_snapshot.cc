#include "server/store_snapshot.h"

#include <algorithm>

namespace df::server {
namespace {

VariantSnapshot OfVariant(const VariantStatus& status) {
  const GenerationInfo& info = status.variant->generation->info();
  return {.name = status.variant->name,
          .kind = std::string(status.variant->KindName()),
          .pinned = status.pinned        ? "true"
                    : status.auto_pinned ? "auto"
                                         : "false",
          .resident = status.state == ResidencyState::kResident,
          .host_bytes = status.bytes,
          .disk_bytes = info.stored_bytes,
          .pool_slot = status.pool ? status.pool->slot : std::string(),
          .pool_error = status.pool ? status.pool->error_at_most : 0};
}

VariantSnapshot OfBase(const Variant& base) {
  return {.name = base.name,
          .kind = "base",
          .pinned = "true",
          .resident = true,
          .host_bytes = base.resident_bytes,
          .disk_bytes = base.stored_bytes};
}

// About how many variants the budget holds: those that are there, and of mean size as many as the rest has room for.
uint64_t MaxResident(const std::vector<VariantStatus>& statuses, const StoreStats& stats) {
  uint64_t n_resident = 0;
  double sum_bytes = 0;
  for (const VariantStatus& status : statuses) {
    if (status.state == ResidencyState::kResident) ++n_resident;
    sum_bytes += static_cast<double>(status.variant->generation->info().resident_bytes);
  }
  if (sum_bytes == 0) return statuses.size();
  const double mean_bytes = sum_bytes / static_cast<double>(statuses.size());
  const double room = static_cast<double>(stats.budget_bytes - std::min(stats.reserved_bytes, stats.budget_bytes));
  const double n_more = std::min(room / mean_bytes, static_cast<double>(statuses.size() - n_resident));
  return n_resident + static_cast<uint64_t>(n_more);
}

}  // namespace

MetricsSnapshot StoreSnapshot(const VariantStore& store) {
  const std::vector<VariantStatus> statuses = store.Statuses();
  StoreStats stats = store.Stats();
  const std::shared_ptr<const Variant> base = store.FindOrNull(store.base_name());
  MetricsSnapshot snapshot;
  snapshot.weight_bytes = base->resident_bytes + stats.resident_bytes;
  snapshot.variants.push_back(OfBase(*base));
  for (const VariantStatus& status : statuses) snapshot.variants.push_back(OfVariant(status));
  snapshot.max_resident = MaxResident(statuses, stats);
  snapshot.waiting_names = std::move(stats.waiting_names);
  snapshot.budget_bytes = stats.budget_bytes;
  snapshot.reserved_bytes = stats.reserved_bytes;
  snapshot.resident_bytes = stats.resident_bytes;
  snapshot.lookups = stats.lookups;
  snapshot.hits = stats.hits;
  snapshot.load_failures = stats.load_failures;
  snapshot.evictions = std::move(stats.evictions);
  snapshot.load_times.bounds_s.assign(kLoadSeconds.begin(), kLoadSeconds.end());
  snapshot.load_times.counts.assign(stats.load_times.counts.begin(), stats.load_times.counts.end());
  snapshot.load_times.sum_s = stats.load_times.sum_s;
  if (stats.pool) {
    snapshot.pool = {.slots = stats.pool->slots,
                     .members = stats.pool->members,
                     .budget_bytes = stats.pool->budget_bytes,
                     .used_bytes = stats.pool->used_bytes,
                     .merges = stats.pool->merges,
                     .refusals = stats.pool->refusals,
                     .evictions = stats.pool->evictions};
  }
  return snapshot;
}

}  // namespace df::server
