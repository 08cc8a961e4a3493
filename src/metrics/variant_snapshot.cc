// The families that say what is resident.
#include <algorithm>
#include <chrono>
#include <limits>

#include "metrics/snapshot.h"

namespace df {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

double UnixSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void AddGauge(double value, Labels labels, MetricFamily& family) {
  ClientMetric& metric = family.metric.emplace_back();
  metric.label = std::move(labels);
  metric.gauge.value = value;
}

void AddCounter(uint64_t value, Labels labels, MetricFamily& family) {
  ClientMetric& metric = family.metric.emplace_back();
  metric.label = std::move(labels);
  metric.counter.value = static_cast<double>(value);
}

MetricFamily SingleGauge(std::string name, std::string help, uint64_t value) {
  MetricFamily family{std::move(name), std::move(help), MetricType::Gauge, {}};
  const bool is_bounded = value != UINT64_MAX;
  AddGauge(is_bounded ? static_cast<double>(value) : std::numeric_limits<double>::infinity(), {}, family);
  return family;
}

MetricFamily SingleCounter(std::string name, std::string help, uint64_t value) {
  MetricFamily family{std::move(name), std::move(help), MetricType::Counter, {}};
  AddCounter(value, {}, family);
  return family;
}

std::string Joined(const std::vector<std::string>& names) {
  std::string joined;
  for (const std::string& name : names) joined += (joined.empty() ? "" : ",") + name;
  return joined;
}

// Exactly one series, whose value is the unix time.
MetricFamily AdapterInfo(const MetricsSnapshot& snapshot) {
  std::vector<std::string> resident;
  for (const VariantSnapshot& variant : snapshot.variants) {
    if (variant.resident && variant.kind != "base") resident.push_back(variant.name);
  }
  MetricFamily family{
      "vllm:lora_requests_info", "Resident variants; the value is the time of this scrape", MetricType::Gauge, {}};
  AddGauge(UnixSeconds(),
           {{"max_lora", std::to_string(std::max<uint64_t>(snapshot.max_resident, resident.size()))},
            {"running_lora_adapters", Joined(resident)},
            {"waiting_lora_adapters", Joined(snapshot.waiting_names)}},
           family);
  return family;
}

MetricFamily LoadSeconds(const LoadTimes& times) {
  MetricFamily family{"deltafold_variant_load_seconds", "Time that loads into memory took", MetricType::Histogram, {}};
  ClientMetric& metric = family.metric.emplace_back();
  metric.label = {{"tier", "host"}};
  uint64_t n_loads = 0;
  for (size_t i = 0; i < times.counts.size(); ++i) {
    n_loads += times.counts[i];
    if (i >= times.bounds_s.size()) break;
    metric.histogram.bucket.push_back({.cumulative_count = n_loads, .upper_bound = times.bounds_s[i]});
  }
  metric.histogram.sample_count = n_loads;
  metric.histogram.sample_sum = times.sum_s;
  return family;
}

MetricFamily Evictions(const std::map<std::string, uint64_t>& evictions) {
  MetricFamily family{
      "deltafold_variant_evictions_total", "Variants that gave their memory back", MetricType::Counter, {}};
  // All causes from the start: a series that appears with its first event has no rate.
  for (const char* cause : {"budget", "idle", "operator", "retired"}) {
    const auto found = evictions.find(cause);
    AddCounter(found == evictions.end() ? 0 : found->second, {{"cause", cause}}, family);
  }
  return family;
}

std::vector<MetricFamily> PoolFamilies(const MetricsSnapshot& snapshot) {
  if (!snapshot.pool) return {};
  const PoolSnapshot& pool = *snapshot.pool;
  MetricFamily error{"deltafold_adapter_pool_error",
                     "How far a name's slot is from its own adapter, relative, at most",
                     MetricType::Gauge,
                     {}};
  for (size_t i = 0; i < std::min(snapshot.variants.size(), kMaxVariantLabels); ++i) {
    const VariantSnapshot& variant = snapshot.variants[i];
    if (variant.pool_slot.empty()) continue;
    AddGauge(variant.pool_error, {{"variant", variant.name}, {"slot", variant.pool_slot}}, error);
  }
  return {std::move(error),
          SingleGauge("deltafold_adapter_pool_slots", "Slots of the adapter pool", pool.slots),
          SingleGauge("deltafold_adapter_pool_members", "Names that the pool's slots answer for", pool.members),
          SingleGauge("deltafold_adapter_pool_bytes", "Bytes that the slots take", pool.used_bytes),
          SingleGauge("deltafold_adapter_pool_budget_bytes", "Bytes that slots may take", pool.budget_bytes),
          SingleCounter("deltafold_adapter_pool_merges_total", "Adapters merged into a slot", pool.merges),
          SingleCounter("deltafold_adapter_pool_refusals_total", "Adapters that were refused", pool.refusals),
          SingleCounter("deltafold_adapter_pool_evictions_total", "Slots given up for others", pool.evictions)};
}

std::vector<MetricFamily> AllVariantFamilies(const MetricsSnapshot& snapshot) {
  MetricFamily resident{"deltafold_variant_resident", "1 while the variant can answer at once", MetricType::Gauge, {}};
  MetricFamily bytes{
      "deltafold_variant_bytes", "A variant's own weights: in memory, and stored", MetricType::Gauge, {}};
  for (size_t i = 0; i < std::min(snapshot.variants.size(), kMaxVariantLabels); ++i) {
    const VariantSnapshot& variant = snapshot.variants[i];
    AddGauge(variant.resident ? 1 : 0,
             {{"variant", variant.name}, {"kind", variant.kind}, {"tier", "host"}, {"pinned", variant.pinned}},
             resident);
    AddGauge(static_cast<double>(variant.host_bytes), {{"variant", variant.name}, {"tier", "host"}}, bytes);
    AddGauge(static_cast<double>(variant.disk_bytes), {{"variant", variant.name}, {"tier", "disk"}}, bytes);
  }
  return {
      AdapterInfo(snapshot),
      std::move(resident),
      std::move(bytes),
      SingleGauge("deltafold_variants_budget_bytes", "Memory that variants may take", snapshot.budget_bytes),
      SingleGauge("deltafold_variants_reserved_bytes", "Memory reserved for variants", snapshot.reserved_bytes),
      SingleGauge("deltafold_variants_resident_bytes", "Memory that resident variants hold", snapshot.resident_bytes),
      SingleCounter("deltafold_variant_lookups_total", "Requests that asked for their variant", snapshot.lookups),
      SingleCounter("deltafold_variant_cache_hits_total", "Requests whose variant was resident", snapshot.hits),
      SingleCounter("deltafold_variant_load_failures_total", "Loads that failed", snapshot.load_failures),
      LoadSeconds(snapshot.load_times),
      Evictions(snapshot.evictions)};
}

}  // namespace

std::vector<MetricFamily> VariantFamilies(const MetricsSnapshot& snapshot) {
  std::vector<MetricFamily> families = AllVariantFamilies(snapshot);
  for (MetricFamily& family : PoolFamilies(snapshot)) families.push_back(std::move(family));
  return families;
}

}  // namespace df
