#include "metrics/metrics.h"

#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

namespace df {
namespace {

VariantSnapshot Resident(const std::string& name, const std::string& kind = "delta") {
  return {.name = name, .kind = kind, .pinned = "false", .resident = true, .host_bytes = 7, .disk_bytes = 9};
}

size_t Count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

bool Has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// "name type label,label" of each family, the labels of its first series, without the bounds of histograms.
std::set<std::string> Shapes(const std::string& text) {
  std::set<std::string> shapes;
  std::istringstream lines(text);
  std::string shape;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("# TYPE ")) shape = line.substr(7);
    if (line.starts_with('#') || shape.empty()) continue;
    std::set<std::string> labels;
    const size_t open = line.find('{');
    for (size_t at = open; at != std::string::npos; at = line.find("\",", at + 1)) {
      const size_t from = at + (at == open ? 1 : 2);
      if (const std::string label = line.substr(from, line.find('=', from) - from); label != "le") labels.insert(label);
    }
    std::string list;
    for (const std::string& label : labels) list += (list.empty() ? " " : ",") + label;
    shapes.insert(std::exchange(shape, "") + list);
  }
  return shapes;
}

// Dashboards and autoscalers match on these: a change of metrics_golden.txt is a change for every user.
TEST(Metrics, HasExactlyTheGoldenNamesTypesAndLabels) {
  ServerMetrics metrics("base");
  std::set<std::string> golden;
  std::ifstream file(DELTAFOLD_SOURCE_DIR "/src/metrics/metrics_golden.txt");
  for (std::string line; std::getline(file, line);) golden.insert(line);
  ASSERT_GT(golden.size(), 30U);
  VariantSnapshot pooled = Resident("pooled");
  pooled.pool_slot = "000001";
  EXPECT_EQ(Shapes(metrics.Render({.variants = {Resident("base", "base"), pooled}, .pool = PoolSnapshot()})), golden);
}

TEST(Metrics, SpeaksOfAnAdapterPoolOnlyWhereThereIsOne) {
  ServerMetrics metrics("base");
  VariantSnapshot pooled = Resident("pooled");
  pooled.pool_slot = "000004";
  pooled.pool_error = 0.5;
  const std::string with =
      metrics.Render({.variants = {pooled, Resident("sql")}, .pool = PoolSnapshot{.slots = 3, .members = 7}});
  EXPECT_TRUE(Has(with, "deltafold_adapter_pool_error{variant=\"pooled\",slot=\"000004\"} 0.5"));
  EXPECT_TRUE(Has(with, "deltafold_adapter_pool_members 7"));
  EXPECT_FALSE(Has(with, "deltafold_adapter_pool_error{variant=\"sql\""));
  EXPECT_FALSE(Has(metrics.Render({.variants = {Resident("sql")}}), "deltafold_adapter_pool"));
}

TEST(Metrics, CountsARequestOnceUnderItsVariantAndReason) {
  ServerMetrics metrics("base");
  metrics.ObserveEnd({.variant = "sql",
                      .finished_reason = "length",
                      .prompt_tokens = 5,
                      .generation_tokens = 3,
                      .e2e_s = 0.4,
                      .queue_s = 0.1,
                      .prefill_s = 0.1,
                      .decode_s = 0.2,
                      .per_output_token_s = 0.1});
  const std::string text = metrics.Render({.variants = {Resident("sql")}});
  EXPECT_NE(text.find("vllm:request_success_total{finished_reason=\"length\",model_name=\"base\"} 1"),
            std::string::npos);
  EXPECT_NE(text.find("deltafold_variant_requests_total{outcome=\"length\",variant=\"sql\"} 1"), std::string::npos);
  EXPECT_NE(text.find("deltafold_variant_prompt_tokens_total{variant=\"sql\"} 5"), std::string::npos);
  EXPECT_NE(text.find("deltafold_variant_generation_tokens_total{variant=\"sql\"} 3"), std::string::npos);
  EXPECT_NE(text.find("deltafold_variant_bytes{variant=\"sql\",tier=\"host\"} 7"), std::string::npos);
  EXPECT_NE(text.find("vllm:e2e_request_latency_seconds_count{model_name=\"base\"} 1"), std::string::npos);
}

TEST(Metrics, ShowsNamesAsLongAsTheyAreRegistered) {
  ServerMetrics metrics("base");
  EXPECT_TRUE(Has(metrics.Render({.variants = {Resident("sql")}}),
                  "deltafold_variant_requests_total{outcome=\"stop\",variant=\"sql\"} 0"));
  metrics.ObserveFirstToken("math", 0.1);  // registered since the last scrape
  metrics.ObserveEnd({.variant = "math", .finished_reason = "stop"});
  const std::string both = metrics.Render({.variants = {Resident("math"), Resident("sql")}});
  EXPECT_TRUE(Has(both, "deltafold_variant_requests_total{outcome=\"stop\",variant=\"math\"} 1"));
  metrics.ObserveEnd({.variant = "sql", .finished_reason = "abort"});  // of a request that outlived its name
  const std::string text = metrics.Render({.variants = {Resident("math")}});
  EXPECT_FALSE(Has(text, "sql"));
  EXPECT_TRUE(Has(text, "deltafold_variant_ttft_seconds_count{variant=\"math\"} 1"));
}

TEST(Metrics, CapsTheNumberOfVariantLabels) {
  ServerMetrics metrics("base");
  std::vector<VariantSnapshot> variants;
  for (int i = 0; i < 1500; ++i) variants.push_back(Resident("v" + std::to_string(i)));
  for (int i = 0; i < 3000; ++i) metrics.ObserveEnd({.variant = "w" + std::to_string(i), .finished_reason = "stop"});
  const std::string text = metrics.Render({.variants = variants});
  EXPECT_EQ(Count(text, "\ndeltafold_variant_resident{"), 1024U);
  EXPECT_LE(Count(text, "\ndeltafold_variant_prompt_tokens_total{"), 1025U);
  EXPECT_FALSE(Has(text, "\"w0\""));
  EXPECT_TRUE(Has(text, "deltafold_variant_requests_total{outcome=\"stop\",variant=\"other\"} 1976"));
  EXPECT_TRUE(Has(text, "v1499")) << "the list that gateways route by is whole";
}

TEST(Metrics, ShowsExactlyOneAdapterSeriesWithWhatIsResidentAndWaitedFor) {
  ServerMetrics metrics("base");
  VariantSnapshot cold = Resident("cold");
  cold.resident = false;
  const std::string text =
      metrics.Render({.variants = {Resident("base", "base"), cold, Resident("json", "lora"), Resident("sql")},
                      .waiting_names = {"cold", "later"},
                      .max_resident = 6});
  EXPECT_EQ(Count(text, "\nvllm:lora_requests_info{"), 1U);
  EXPECT_TRUE(Has(text, "max_lora=\"6\",running_lora_adapters=\"json,sql\",waiting_lora_adapters=\"cold,later\""))
      << text;
  EXPECT_TRUE(
      Has(text, "deltafold_variant_resident{variant=\"cold\",kind=\"delta\",tier=\"host\",pinned=\"false\"} 0"));
  EXPECT_TRUE(Has(text, "deltafold_variant_resident{variant=\"sql\",kind=\"delta\",tier=\"host\",pinned=\"false\"} 1"));
}

TEST(Metrics, CountsLoadsIntoTheirHistogramAndEvictionsByCause) {
  ServerMetrics metrics("base");
  const LoadTimes times{.bounds_s = {0.5, 60}, .counts = {2, 0, 1}, .sum_s = 103};
  const std::string text = metrics.Render({.evictions = {{"idle", 4}}, .load_times = times});
  EXPECT_TRUE(Has(text, "deltafold_variant_load_seconds_bucket{tier=\"host\",le=\"0.5\"} 2"));
  EXPECT_TRUE(Has(text, "deltafold_variant_load_seconds_bucket{tier=\"host\",le=\"60\"} 2"));
  EXPECT_TRUE(Has(text, "deltafold_variant_load_seconds_bucket{tier=\"host\",le=\"+Inf\"} 3"));
  EXPECT_TRUE(Has(text, "deltafold_variant_load_seconds_sum{tier=\"host\"} 103"));
  EXPECT_TRUE(Has(text, "deltafold_variant_evictions_total{cause=\"idle\"} 4"));
  EXPECT_TRUE(Has(text, "deltafold_variant_evictions_total{cause=\"budget\"} 0"));
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
