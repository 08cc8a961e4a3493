#include "tools/bench_serve.h"

#include <unistd.h>

#include <cmath>

#include "base/clock.h"
#include "base/json.h"
#include "base/rng.h"
#include "tools/statistics.h"

namespace df::tools {
namespace {

constexpr size_t kMaxRequests = 100'000;
constexpr size_t kMaxTokens = 1'000'000;
constexpr const char* kTotal = "total";

Status Check(const ServeBenchOptions& options) {
  if (options.n_requests == 0 || options.n_requests > kMaxRequests) {
    return InvalidArgument("num-prompts must be 1 to " + std::to_string(kMaxRequests));
  }
  if (options.n_prompt == 0 || options.n_output == 0 || options.n_prompt > kMaxTokens ||
      options.n_output > kMaxTokens) {
    return InvalidArgument("input-len and output-len must be 1 to " + std::to_string(kMaxTokens));
  }
  if (!(options.load.timeout_s > 0 && options.load.timeout_s <= 86'400)) {
    return InvalidArgument("timeout must be above 0 and at most 86400 seconds");
  }
  if (options.rate && !(std::isfinite(*options.rate) && *options.rate > 0)) {
    return InvalidArgument("rate must be above 0, or inf");
  }
  return Status::Ok();
}

struct Listed {
  std::vector<std::string> names;
  std::string base;  // the first one without a parent
};

Result<Listed> ListModels(const Endpoint& endpoint) {
  DF_ASSIGN_OR_RETURN(const std::string body, Fetch(endpoint, "/v1/models"));
  DF_ASSIGN_OR_RETURN(const Json json, ParseJson(body));
  const Json* data = JsonMemberOrNull(json, "data");
  if (data == nullptr || !data->is_array() || data->empty()) return Corrupt("/v1/models lists no model");
  Listed listed;
  for (const Json& card : *data) {
    if (!card.is_object()) return Corrupt("/v1/models holds an entry that is no object");
    DF_ASSIGN_OR_RETURN(std::string name, JsonString(card, "id"));
    if (listed.base.empty() && JsonMemberOrNull(card, "parent") == nullptr) listed.base = name;
    listed.names.push_back(std::move(name));
  }
  return listed;
}

// The place in the list that a draw from [0, 1) selects.
size_t PickModel(Mix mix, size_t n_models, double draw) {
  if (mix == Mix::kUniform) return static_cast<size_t>(draw * static_cast<double>(n_models));
  double sum = 0;
  for (size_t k = 1; k <= n_models; ++k) sum += 1 / static_cast<double>(k);
  double reached = 0;
  for (size_t k = 1; k < n_models; ++k) {
    reached += 1 / static_cast<double>(k) / sum;
    if (draw < reached) return k - 1;
  }
  return n_models - 1;
}

Summary SummaryOfSeconds(std::vector<double>& samples) {
  if (samples.empty()) return {};
  for (double& sample : samples) sample *= 1e3;
  return {.mean = Mean(samples),
          .median = Median(samples),
          .std = StandardDeviation(samples),
          .p99 = Percentile(samples, 99)};
}

void Add(Json& json, const std::string& name, const Summary& summary) {
  json["mean_" + name + "_ms"] = summary.mean;
  json["median_" + name + "_ms"] = summary.median;
  json["std_" + name + "_ms"] = summary.std;
  json["p99_" + name + "_ms"] = summary.p99;
}

Json RatiosToBase(const LoadFigures& figures, const LoadFigures& base) {
  Json ratios = Json::object();
  const auto add = [&](const std::string& name, double value, double base_value) {
    if (base_value > 0) ratios[name] = value / base_value;
  };
  add("median_ttft_ms", figures.ttft.median, base.ttft.median);
  add("p99_ttft_ms", figures.ttft.p99, base.ttft.p99);
  add("median_tpot_ms", figures.tpot.median, base.tpot.median);
  add("p99_tpot_ms", figures.tpot.p99, base.tpot.p99);
  add("median_itl_ms", figures.itl.median, base.itl.median);
  add("median_e2el_ms", figures.e2el.median, base.e2el.median);
  return ratios;
}

std::string FirstFailure(const LoadResult& result) {
  for (const LoadOutcome& outcome : result.outcomes) {
    if (!outcome.status.ok()) return outcome.status.message();
  }
  return "";
}

// 32 bits: every reader of JSON can hold it.
uint64_t FreshSeed() {
  uint32_t seed = 0;
  if (getentropy(&seed, sizeof(seed)) != 0) seed = static_cast<uint32_t>(SteadyClock().NowUs());
  return seed;
}

}  // namespace

std::vector<LoadRequest> PlanLoad(const ServeBenchOptions& options, const std::vector<std::string>& models,
                                  uint64_t prompt_seed, LoadRun run) {
  const uint64_t run_seed = RandomBits(prompt_seed, static_cast<uint64_t>(run));
  std::vector<LoadRequest> requests;
  double at_s = 0;
  for (size_t i = 0; i < options.n_requests; ++i) {
    // Two draws a request: whom it asks, when the next one arrives.
    const double model_draw = RandomUnit(options.seed, 2 * i);
    requests.push_back({.model = models[PickModel(options.mix, models.size(), model_draw)],
                        .n_prompt = options.n_prompt,
                        .n_output = options.n_output,
                        .at_s = at_s,
                        .seed = RandomBits(run_seed, i)});
    // Times between arrivals of a Poisson process are exponential.
    if (options.rate) at_s += -std::log1p(-RandomUnit(options.seed, 2 * i + 1)) / *options.rate;
  }
  return requests;
}

LoadFigures Summarize(const std::string& model, const std::vector<LoadRequest>& requests, const LoadResult& result) {
  LoadFigures figures = {.name = model, .duration_s = result.duration_s};
  std::vector<double> ttft, tpot, itl, e2el;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (model != kTotal && requests[i].model != model) continue;
    const LoadOutcome& outcome = result.outcomes[i];
    if (!outcome.status.ok()) {
      ++figures.failed;
      continue;
    }
    ++figures.completed;
    figures.input_tokens += requests[i].n_prompt;
    figures.output_tokens += outcome.n_output;
    ttft.push_back(outcome.ttft_s);
    e2el.push_back(outcome.e2e_s);
    itl.insert(itl.end(), outcome.gap_s.begin(), outcome.gap_s.end());
    if (outcome.n_output > 1) {
      tpot.push_back((outcome.e2e_s - outcome.ttft_s) / static_cast<double>(outcome.n_output - 1));
    }
  }
  figures.ttft = SummaryOfSeconds(ttft);
  figures.tpot = SummaryOfSeconds(tpot);
  figures.itl = SummaryOfSeconds(itl);
  figures.e2el = SummaryOfSeconds(e2el);
  return figures;
}

Result<ServeBenchReport> RunServeBench(const Endpoint& endpoint, ServeBenchOptions options) {
  DF_RETURN_IF_ERROR(Check(options));
  std::string baseline = options.baseline;
  if (options.models.empty() || (options.with_baseline && baseline.empty())) {
    DF_ASSIGN_OR_RETURN(const Listed listed, ListModels(endpoint));
    if (options.models.empty()) options.models = listed.names;
    if (baseline.empty()) baseline = listed.base;
  }
  const auto say = [&](const std::string& what) {
    if (options.on_progress) options.on_progress(what);
  };
  ServeBenchReport report;
  report.prompt_seed = options.prompt_seed ? *options.prompt_seed : FreshSeed();
  if (options.with_baseline) {
    say(baseline + " alone");
    const std::vector<LoadRequest> requests = PlanLoad(options, {baseline}, report.prompt_seed, LoadRun::kBaseAlone);
    DF_ASSIGN_OR_RETURN(const LoadResult result, SendLoad(endpoint, requests, options.load));
    report.baseline = Summarize(baseline, requests, result);
    report.first_failure = FirstFailure(result);
    if (report.baseline->completed == 0) return Unavailable("no request succeeded: " + report.first_failure);
  }
  say(std::to_string(options.models.size()) + " models together");
  const std::vector<LoadRequest> requests = PlanLoad(options, options.models, report.prompt_seed, LoadRun::kTogether);
  DF_ASSIGN_OR_RETURN(const LoadResult result, SendLoad(endpoint, requests, options.load));
  if (report.first_failure.empty()) report.first_failure = FirstFailure(result);
  report.total = Summarize(kTotal, requests, result);
  if (report.total.completed == 0) return Unavailable("no request succeeded: " + report.first_failure);
  for (const std::string& model : options.models) report.variants.push_back(Summarize(model, requests, result));
  return report;
}

Json ToJson(const LoadFigures& figures) {
  Json json = {{"model", figures.name},
               {"duration", figures.duration_s},
               {"completed", figures.completed},
               {"failed", figures.failed},
               {"total_input_tokens", figures.input_tokens},
               {"total_output_tokens", figures.output_tokens}};
  const double duration_s = figures.duration_s > 0 ? figures.duration_s : 1;
  json["request_throughput"] = static_cast<double>(figures.completed) / duration_s;
  json["output_throughput"] = static_cast<double>(figures.output_tokens) / duration_s;
  json["total_token_throughput"] = static_cast<double>(figures.input_tokens + figures.output_tokens) / duration_s;
  Add(json, "ttft", figures.ttft);
  Add(json, "tpot", figures.tpot);
  Add(json, "itl", figures.itl);
  Add(json, "e2el", figures.e2el);
  return json;
}

Json ToJson(const ServeBenchReport& report) {
  Json json = ToJson(report.total);
  json["prompt_seed"] = report.prompt_seed;
  if (report.baseline) {
    json["ratio_to_base"] = RatiosToBase(report.total, *report.baseline);
    json["base_only"] = ToJson(*report.baseline);
  }
  json["variants"] = Json::array();
  for (const LoadFigures& figures : report.variants) {
    Json entry = ToJson(figures);
    if (report.baseline && figures.completed > 0) entry["ratio_to_base"] = RatiosToBase(figures, *report.baseline);
    json["variants"].push_back(std::move(entry));
  }
  if (!report.first_failure.empty()) json["first_failure"] = report.first_failure;
  return json;
}

}  // namespace df::tools
