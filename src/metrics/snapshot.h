// The families that are read from counters kept elsewhere, built anew at each scrape.
#ifndef DELTAFOLD_METRICS_SNAPSHOT_H_
#define DELTAFOLD_METRICS_SNAPSHOT_H_

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "metrics/metrics.h"

namespace df {

std::vector<prometheus::MetricFamily> SnapshotFamilies(const std::string& model_name, const MetricsSnapshot& snapshot);

// vllm:lora_requests_info: exactly one series whose value is the unix time; gateways route by its list of names.
prometheus::MetricFamily AdapterInfoFamily(const std::vector<std::string>& resident_names);

}  // namespace df

#endif  // DELTAFOLD_METRICS_SNAPSHOT_H_
