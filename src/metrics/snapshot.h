// The families that are read from counters kept elsewhere, built anew at each scrape.
#ifndef DELTAFOLD_METRICS_SNAPSHOT_H_
#define DELTAFOLD_METRICS_SNAPSHOT_H_

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "metrics/metrics.h"

namespace df {

std::vector<prometheus::MetricFamily> SnapshotFamilies(const std::string& model_name, const MetricsSnapshot& snapshot);

// What is resident, for whom and since when it was not: names beyond kMaxVariantLabels are left out of the families
// with a label for each, of vllm:lora_requests_info (by which gateways route) never.
std::vector<prometheus::MetricFamily> VariantFamilies(const MetricsSnapshot& snapshot);

inline constexpr size_t kMaxVariantLabels = 1024;

}  // namespace df

#endif  // DELTAFOLD_METRICS_SNAPSHOT_H_
