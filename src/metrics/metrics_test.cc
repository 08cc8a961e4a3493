#include "metrics/metrics.h"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

namespace df {
namespace {

std::set<std::string> FamilyNames(const std::string& text) {
  std::set<std::string> names;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("# TYPE ")) continue;
    names.insert(line.substr(7, line.find(' ', 7) - 7));
  }
  return names;
}

size_t Count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

// Dashboards and autoscalers match on these: a change here is a change for every user.
TEST(Metrics, HasExactlyTheGoldenListOfNames) {
  ServerMetrics metrics("base");
  metrics.AddVariant({.name = "base", .kind = "base", .weight_bytes = 10});
  const std::set<std::string> golden = {
      "vllm:num_requests_running",
      "vllm:num_requests_waiting",
      "vllm:kv_cache_usage_perc",
      "vllm:cache_config_info",
      "vllm:prompt_tokens_total",
      "vllm:generation_tokens_total",
      "vllm:num_preemptions_total",
      "vllm:request_success_total",
      "vllm:time_to_first_token_seconds",
      "vllm:inter_token_latency_seconds",
      "vllm:request_time_per_output_token_seconds",
      "vllm:e2e_request_latency_seconds",
      "vllm:request_queue_time_seconds",
      "vllm:request_prefill_time_seconds",
      "vllm:request_decode_time_seconds",
      "vllm:lora_requests_info",
      "deltafold_variant_requests_total",
      "deltafold_variant_prompt_tokens_total",
      "deltafold_variant_generation_tokens_total",
      "deltafold_variant_ttft_seconds",
      "deltafold_variant_resident",
      "deltafold_variant_bytes",
      "deltafold_weight_bytes",
      "deltafold_kv_cache_bytes",
      "deltafold_steps_total",
      "deltafold_step_bytes_total",
      "deltafold_step_flops_total",
      "deltafold_step_seconds_total",
      "process_resident_memory_bytes",
  };
  EXPECT_EQ(FamilyNames(metrics.Render({})), golden);
}

TEST(Metrics, CountsARequestOnceUnderItsVariantAndReason) {
  ServerMetrics metrics("base");
  metrics.AddVariant({.name = "sql", .kind = "delta", .weight_bytes = 7});
  metrics.ObserveEnd({.variant = "sql",
                      .finished_reason = "length",
                      .prompt_tokens = 5,
                      .generation_tokens = 3,
                      .e2e_s = 0.4,
                      .queue_s = 0.1,
                      .prefill_s = 0.1,
                      .decode_s = 0.2,
                      .per_output_token_s = 0.1});
  const std::string text = metrics.Render({});
  EXPECT_NE(text.find("vllm:request_success_total{finished_reason=\"length\",model_name=\"base\"} 1"),
            std::string::npos);
  EXPECT_NE(text.find("deltafold_variant_requests_total{outcome=\"length\",variant=\"sql\"} 1"), std::string::npos);
  EXPECT_NE(text.find("deltafold_variant_prompt_tokens_total{variant=\"sql\"} 5"), std::string::npos);
  EXPECT_NE(text.find("deltafold_variant_generation_tokens_total{variant=\"sql\"} 3"), std::string::npos);
  EXPECT_NE(text.find("deltafold_variant_bytes{tier=\"host\",variant=\"sql\"} 7"), std::string::npos);
  EXPECT_NE(text.find("vllm:e2e_request_latency_seconds_count{model_name=\"base\"} 1"), std::string::npos);
}

TEST(Metrics, PutsNamesThatWereNeverRegisteredUnderOther) {
  ServerMetrics metrics("base");
  for (int i = 0; i < 1000; ++i) {
    const std::string name = "guess" + std::to_string(i);
    metrics.ObserveFirstToken(name, 0.1);
    metrics.ObserveEnd({.variant = name, .finished_reason = "stop"});
  }
  const std::string text = metrics.Render({});
  EXPECT_EQ(text.find("guess"), std::string::npos);
  EXPECT_NE(text.find("deltafold_variant_requests_total{outcome=\"stop\",variant=\"other\"} 1000"), std::string::npos);
}

TEST(Metrics, CapsTheNumberOfVariantLabels) {
  ServerMetrics metrics("base");
  for (int i = 0; i < 1500; ++i) metrics.AddVariant({.name = "v" + std::to_string(i), .kind = "delta"});
  EXPECT_EQ(Count(metrics.Render({}), "deltafold_variant_resident{"), 1024U);
}

TEST(Metrics, ShowsExactlyOneAdapterSeriesWithTheResidentNames) {
  ServerMetrics metrics("base");
  metrics.AddVariant({.name = "base", .kind = "base"});
  metrics.AddVariant({.name = "sql", .kind = "delta"});
  metrics.AddVariant({.name = "json", .kind = "lora"});
  const std::string text = metrics.Render({});
  EXPECT_EQ(Count(text, "\nvllm:lora_requests_info{"), 1U);
  EXPECT_NE(text.find("running_lora_adapters=\"sql,json\""), std::string::npos);
}

TEST(Metrics, AddsBatchesOfTokenGapsToTheHistogram) {
  ServerMetrics metrics("base");
  InterTokenGaps gaps;
  gaps.Add(0.02, 3);
  gaps.Add(200.0, 1);
  metrics.ObserveInterToken(gaps);
  EXPECT_EQ(gaps.count(), 0U);
  const std::string text = metrics.Render({});
  EXPECT_NE(text.find("vllm:inter_token_latency_seconds_count{model_name=\"base\"} 4"), std::string::npos);
  EXPECT_NE(text.find("vllm:inter_token_latency_seconds_bucket{model_name=\"base\",le=\"0.025\"} 3"),
            std::string::npos);
  EXPECT_NE(text.find("vllm:inter_token_latency_seconds_bucket{model_name=\"base\",le=\"80\"} 3"), std::string::npos);
}

TEST(Metrics, ReportsTheEnginesCountersAsTheyAre) {
  ServerMetrics metrics("base");
  const std::string text = metrics.Render({.n_running = 2,
                                           .n_waiting = 3,
                                           .kv_block_tokens = 16,
                                           .kv_blocks_used = 5,
                                           .kv_blocks_total = 20,
                                           .prompt_tokens = 11,
                                           .generation_tokens = 12,
                                           .preemptions = 1});
  EXPECT_NE(text.find("vllm:num_requests_running{model_name=\"base\"} 2"), std::string::npos);
  EXPECT_NE(text.find("vllm:num_requests_waiting{model_name=\"base\"} 3"), std::string::npos);
  EXPECT_NE(text.find("vllm:kv_cache_usage_perc{model_name=\"base\"} 0.25"), std::string::npos);
  EXPECT_NE(text.find("block_size=\"16\",num_gpu_blocks=\"20\""), std::string::npos);
  EXPECT_NE(text.find("vllm:generation_tokens_total{model_name=\"base\"} 12"), std::string::npos);
}

}  // namespace
}  // namespace df
