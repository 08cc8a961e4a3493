// What a ModelBenchReport says: promises, JSON, plots.
#include "base/json.h"
#include "tools/bench_model.h"

namespace df::tools {
namespace {

// The median where one looks for it, and what it comes from beside it.
void Put(Json& json, const std::string& name, const std::optional<PairedRatio>& ratio) {
  json[name] = ratio ? Json(ratio->value) : Json();
  if (!ratio) return;
  json[name + "_interval"] = {ratio->bounds.low, ratio->bounds.high};
  json[name + "_samples"] = ratio->samples;
}

double TokensPerSecond(size_t n_rows, double step_ms) { return static_cast<double>(n_rows) * 1e3 / step_ms; }

Json StepJson(size_t n_rows, double step_ms) {
  return {{"step_ms", step_ms}, {"tokens_per_second", TokensPerSecond(n_rows, step_ms)}};
}

Json ToJson(const BatchLine& line) {
  Json json = {{"batch", line.n_rows}, {"read_bytes_per_second", line.read_bytes_per_second}};
  json["base"] = StepJson(line.n_rows, line.base_step_ms);
  Put(json["base"], "bandwidth_share", line.base_bandwidth_share);
  json["one_variant"] = StepJson(line.n_rows, line.one_step_ms);
  Put(json["one_variant"], "ratio", line.one_ratio);
  if (!line.distinct_step_ms) return json;
  Json& distinct = json["distinct_variants"] = StepJson(line.n_rows, *line.distinct_step_ms);
  Put(distinct, "ratio", line.distinct_ratio);
  Put(distinct, "ratio_to_bound", line.distinct_bound_ratio);
  Put(distinct, "bandwidth_share", line.distinct_bandwidth_share);
  return json;
}

Json ToJson(const PromptLine& line) {
  Json json = {{"prompt_tokens", line.n_tokens},
               {"pairs", line.n_pairs},
               {"base_ttft_ms", line.base_ttft_ms},
               {"variant_ttft_ms", line.variant_ttft_ms},
               {"base_token_ms", line.base_token_ms},
               {"variant_token_ms", line.variant_token_ms},
               {"read_bytes_per_second", line.read_bytes_per_second}};
  Put(json, "ttft_ratio", line.ttft_ratio);
  Put(json, "token_ratio", line.token_ratio);
  Put(json, "base_bandwidth_share", line.base_bandwidth_share);
  Put(json, "variant_bandwidth_share", line.variant_bandwidth_share);
  return json;
}

const BatchLine* BatchOrNull(const ModelBenchReport& report, size_t n) {
  for (const BatchLine& line : report.batches) {
    if (line.n_rows == n) return &line;
  }
  return nullptr;
}

const PromptLine* PromptOrNull(const ModelBenchReport& report, size_t n) {
  for (const PromptLine& line : report.prompts) {
    if (line.n_tokens == n) return &line;
  }
  return nullptr;
}

}  // namespace

PairedRatio::PairedRatio(std::vector<double> of_rounds)
    : samples(std::move(of_rounds)), value(Median(samples)), bounds(MedianBounds(samples)) {}

std::vector<ModelPromise> Promises(const ModelBenchReport& report) {
  std::vector<ModelPromise> promises;
  if (const BatchLine* one = BatchOrNull(report, 1)) {
    promises.push_back({.name = "decode, one variant / base", .ratio = one->one_ratio, .target = 1.12});
  }
  if (const BatchLine* eight = BatchOrNull(report, 8); eight != nullptr && eight->distinct_bound_ratio) {
    promises.push_back(
        {.name = "decode, 8 variants in a batch / bound", .ratio = *eight->distinct_bound_ratio, .target = 1.3});
  }
  if (const PromptLine* prompt = PromptOrNull(report, kPromisePromptTokens)) {
    promises.push_back({.name = "first token after 512, variant / base", .ratio = prompt->ttft_ratio, .target = 1.04});
    if (prompt->base_bandwidth_share) {
      promises.push_back({.name = "decode step at 512 tokens, share of read bandwidth",
                          .ratio = *prompt->base_bandwidth_share,
                          .target = 0.82,
                          .higher_is_better = true});
    }
  }
  return promises;
}

Json ToJson(const ModelBenchReport& report) {
  Json json = {{"void", report.is_void},
               {"shape", report.shape},
               {"vector_target", report.vector_target},
               {"threads", report.n_threads},
               {"n_variants", report.n_variants},
               {"kv_cache_dtype", report.kv_dtype},
               {"prefill_dtype", report.prefill_dtype}};
  json["limits"] = {{"before", ToJson(report.before)}, {"after", ToJson(report.after)}, {"drift", report.drift}};
  json["memory"] = {{"base_bytes", report.base_bytes},     {"variant_bytes", report.variant_bytes},
                    {"copies_bytes", report.copies_bytes}, {"kv_bytes", report.kv_bytes},
                    {"rss_bytes", report.rss_bytes},       {"rss_file_bytes", report.rss_file_bytes}};
  json["variants"] = Json::array();
  for (const VariantLine& line : report.variants) {
    json["variants"].push_back({{"name", line.name},
                                {"p50_ttft_ms", line.p50_ttft_ms},
                                {"p99_ttft_ms", line.p99_ttft_ms},
                                {"ratio", line.ratio},
                                {"requests", line.n_requests}});
  }
  json["prompts"] = Json::array();
  for (const PromptLine& line : report.prompts) json["prompts"].push_back(ToJson(line));
  json["batches"] = Json::array();
  for (const BatchLine& line : report.batches) json["batches"].push_back(ToJson(line));
  json["promises"] = Json::array();
  for (const ModelPromise& promise : Promises(report)) {
    Json line = {{"name", promise.name}};
    Put(line, "value", promise.ratio);
    line["target"] = promise.target;
    line["better"] = promise.higher_is_better ? "higher" : "lower";
    line["pass"] = promise.holds();
    json["promises"].push_back(std::move(line));
  }
  return json;
}

std::vector<Plot> Plots(const ModelBenchReport& report) {
  Plot ratio = {.title = "A decode step over the base's, " + report.shape,
                .x_label = "distinct variants in the batch, one row each",
                .y_label = "time / time of as many base rows",
                .series = {{.name = "measured", .points = {}}, {.name = "limit of bytes, at 1 row", .points = {}}}};
  Plot speed = {.title = "Decode speed, " + report.shape,
                .x_label = "rows in the batch",
                .y_label = "tokens per second",
                .series = {{.name = "base", .points = {}},
                           {.name = "one variant", .points = {}},
                           {.name = "all distinct", .points = {}}}};
  for (const BatchLine& line : report.batches) {
    const auto n = static_cast<double>(line.n_rows);
    speed.series[0].points.push_back({n, TokensPerSecond(line.n_rows, line.base_step_ms)});
    speed.series[1].points.push_back({n, TokensPerSecond(line.n_rows, line.one_step_ms)});
    if (!line.distinct_step_ms) continue;
    speed.series[2].points.push_back({n, TokensPerSecond(line.n_rows, *line.distinct_step_ms)});
    ratio.series[0].points.push_back({n, line.distinct_ratio->value});
    ratio.series[1].points.push_back({n, 1 + n / 16});
  }
  return {std::move(ratio), std::move(speed)};
}

}  // namespace df::tools
