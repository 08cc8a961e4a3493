#include "metrics/snapshot.h"

#include <unistd.h>

#include <fstream>

namespace df {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

MetricFamily Gauge(std::string name, std::string help, double value, std::vector<ClientMetric::Label> labels) {
  ClientMetric metric;
  metric.label = std::move(labels);
  metric.gauge.value = value;
  return {std::move(name), std::move(help), MetricType::Gauge, {std::move(metric)}};
}

MetricFamily Counter(std::string name, std::string help, double value, std::vector<ClientMetric::Label> labels) {
  ClientMetric metric;
  metric.label = std::move(labels);
  metric.counter.value = value;
  return {std::move(name), std::move(help), MetricType::Counter, {std::move(metric)}};
}

MetricFamily Counter(std::string name, std::string help, uint64_t value, std::vector<ClientMetric::Label> labels) {
  return Counter(std::move(name), std::move(help), static_cast<double>(value), std::move(labels));
}

uint64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  uint64_t total_pages = 0, resident_pages = 0;
  statm >> total_pages >> resident_pages;
  return resident_pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

std::vector<MetricFamily> SnapshotFamilies(const std::string& model_name, const MetricsSnapshot& snapshot) {
  const std::vector<ClientMetric::Label> model = {{"model_name", model_name}};
  const double usage = snapshot.kv_blocks_total == 0 ? 0.0
                                                     : static_cast<double>(snapshot.kv_blocks_used) /
                                                           static_cast<double>(snapshot.kv_blocks_total);
  return {
      Gauge("vllm:num_requests_running", "Requests in the running set", static_cast<double>(snapshot.n_running), model),
      Gauge("vllm:num_requests_waiting", "Requests waiting to enter the running set",
            static_cast<double>(snapshot.n_waiting), model),
      Gauge("vllm:kv_cache_usage_perc", "Share of the KV blocks in use, 1 = all", usage, model),
      Gauge("vllm:cache_config_info", "Shape of the KV cache; the value is always 1", 1.0,
            {{"block_size", std::to_string(snapshot.kv_block_tokens)},
             {"num_gpu_blocks", std::to_string(snapshot.kv_blocks_total)},
             {"model_name", model_name}}),
      Counter("vllm:prompt_tokens_total", "Prompt tokens computed", snapshot.prompt_tokens, model),
      Counter("vllm:generation_tokens_total", "Tokens generated", snapshot.generation_tokens, model),
      Counter("vllm:num_preemptions_total", "Sequences preempted for want of KV blocks", snapshot.preemptions, model),
      Counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache",
              snapshot.prefix_cache_queries, model),
      Counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache", snapshot.prefix_cache_hits,
              model),
      Gauge("deltafold_weight_bytes", "Memory of the base and all resident variants",
            static_cast<double>(snapshot.weight_bytes), {}),
      Gauge("deltafold_kv_cache_bytes", "Memory of the KV cache", static_cast<double>(snapshot.kv_bytes), {}),
      Counter("deltafold_steps_total", "Steps of the engine", snapshot.steps, {}),
      Counter("deltafold_step_bytes_total", "Bytes that the steps had to move at least", snapshot.step_bytes, {}),
      Counter("deltafold_step_flops_total", "Additions and multiplications that the steps had to do at least",
              snapshot.step_flops, {}),
      Counter("deltafold_step_seconds_total", "Time spent in steps", snapshot.step_seconds, {}),
      Gauge("process_resident_memory_bytes", "Resident memory of the process", static_cast<double>(ResidentBytes()),
            {}),
  };
}

}  // namespace df
