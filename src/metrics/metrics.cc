#include "metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "metrics/snapshot.h"

namespace df {
namespace {

using prometheus::Histogram;
using Buckets = Histogram::BucketBoundaries;

// vLLM's boundaries, so that existing dashboards and their quantiles stay comparable.
const Buckets& FirstTokenBuckets() {
  static const Buckets buckets = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
                                  1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0};
  return buckets;
}

const Buckets& TokenGapBuckets() {
  static const Buckets buckets = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
                                  0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
  return buckets;
}

const Buckets& RequestBuckets() {
  static const Buckets buckets = {0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,   5.0,   10.0,   15.0,  20.0,
                                  30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
  return buckets;
}

constexpr std::string_view kOther = "other";
constexpr std::string_view kReasons[] = {"stop", "length", "abort", "error"};

size_t ReasonIndex(std::string_view reason) {
  const auto* found = std::find(std::begin(kReasons), std::end(kReasons), reason);
  return found == std::end(kReasons) ? std::size(kReasons) - 1 : static_cast<size_t>(found - kReasons);
}

}  // namespace

InterTokenGaps::InterTokenGaps() : buckets_(TokenGapBuckets().size() + 1, 0.0) {}

void InterTokenGaps::Add(double gap_s, uint64_t n_tokens) {
  const Buckets& bounds = TokenGapBuckets();
  const auto bucket = std::lower_bound(bounds.begin(), bounds.end(), gap_s) - bounds.begin();
  buckets_[static_cast<size_t>(bucket)] += static_cast<double>(n_tokens);
  sum_s_ += gap_s * static_cast<double>(n_tokens);
  count_ += n_tokens;
}

void InterTokenGaps::Clear() {
  std::fill(buckets_.begin(), buckets_.end(), 0.0);
  count_ = 0;
  sum_s_ = 0;
}

struct ServerMetrics::State {
  // The series of one variant; the registry owns them.
  struct Series {
    prometheus::Counter* outcomes[std::size(kReasons)] = {};
    prometheus::Counter* prompt_tokens = nullptr;
    prometheus::Counter* generation_tokens = nullptr;
    Histogram* ttft = nullptr;
  };

  explicit State(std::string name) : model_name(std::move(name)), label{{"model_name", model_name}} {
    for (size_t i = 0; i < std::size(kReasons); ++i) {
      prometheus::Labels labels = label;
      labels["finished_reason"] = kReasons[i];
      success[i] = &success_family.Add(labels);
    }
  }

  Histogram& AddHistogram(const char* name, const char* help, const Buckets& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(label, buckets);
  }
  Series& SeriesOf(std::string_view variant);
  void RemoveSeries(const Series& removed);
  // Every registered name has its series, also before its first request; no other has.
  void FollowNames(const std::vector<VariantSnapshot>& variants);

  std::string model_name;
  prometheus::Labels label;
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& success_family = prometheus::BuildCounter()
                                                                .Name("vllm:request_success_total")
                                                                .Help("Requests by how they ended")
                                                                .Register(registry);
  prometheus::Counter* success[std::size(kReasons)] = {};
  Histogram& ttft = AddHistogram("vllm:time_to_first_token_seconds", "Arrival to first token", FirstTokenBuckets());
  Histogram& gap = AddHistogram("vllm:inter_token_latency_seconds", "Time between tokens", TokenGapBuckets());
  Histogram& per_token = AddHistogram("vllm:request_time_per_output_token_seconds",
                                      "Mean time a token after the first, per request", TokenGapBuckets());
  Histogram& e2e = AddHistogram("vllm:e2e_request_latency_seconds", "Arrival to last token", RequestBuckets());
  Histogram& queue = AddHistogram("vllm:request_queue_time_seconds", "Arrival to the running set", RequestBuckets());
  Histogram& prefill =
      AddHistogram("vllm:request_prefill_time_seconds", "Running set to first token", RequestBuckets());
  Histogram& decode = AddHistogram("vllm:request_decode_time_seconds", "First to last token", RequestBuckets());
  prometheus::Family<prometheus::Counter>& variant_requests = prometheus::BuildCounter()
                                                                  .Name("deltafold_variant_requests_total")
                                                                  .Help("Requests of a variant by how they ended")
                                                                  .Register(registry);
  prometheus::Family<prometheus::Counter>& variant_prompt_tokens = prometheus::BuildCounter()
                                                                       .Name("deltafold_variant_prompt_tokens_total")
                                                                       .Help("Prompt tokens of finished requests")
                                                                       .Register(registry);
  prometheus::Family<prometheus::Counter>& variant_generation_tokens =
      prometheus::BuildCounter()
          .Name("deltafold_variant_generation_tokens_total")
          .Help("Tokens generated by finished requests")
          .Register(registry);
  prometheus::Family<Histogram>& variant_ttft = prometheus::BuildHistogram()
                                                    .Name("deltafold_variant_ttft_seconds")
                                                    .Help("Arrival to first token of a variant's requests")
                                                    .Register(registry);

  std::mutex mutex;  // guards what follows; series are thread-safe, but must not be removed while one counts
  std::map<std::string, Series, std::less<>> series;
};

ServerMetrics::State::Series& ServerMetrics::State::SeriesOf(std::string_view variant) {
  if (const auto found = series.find(variant); found != series.end()) return found->second;
  if (series.size() >= kMaxVariantLabels && variant != kOther) return SeriesOf(kOther);
  const std::string name(variant);
  Series added;
  for (size_t i = 0; i < std::size(kReasons); ++i) {
    added.outcomes[i] = &variant_requests.Add({{"variant", name}, {"outcome", std::string(kReasons[i])}});
  }
  added.prompt_tokens = &variant_prompt_tokens.Add({{"variant", name}});
  added.generation_tokens = &variant_generation_tokens.Add({{"variant", name}});
  added.ttft = &variant_ttft.Add({{"variant", name}}, FirstTokenBuckets());
  return series.emplace(name, added).first->second;
}

void ServerMetrics::State::RemoveSeries(const Series& removed) {
  for (prometheus::Counter* outcome : removed.outcomes) variant_requests.Remove(outcome);
  variant_prompt_tokens.Remove(removed.prompt_tokens);
  variant_generation_tokens.Remove(removed.generation_tokens);
  variant_ttft.Remove(removed.ttft);
}

void ServerMetrics::State::FollowNames(const std::vector<VariantSnapshot>& variants) {
  std::set<std::string_view> names = {kOther};
  for (const VariantSnapshot& variant : variants) names.insert(variant.name);
  for (auto it = series.begin(); it != series.end();) {
    if (names.contains(it->first)) {
      ++it;
    } else {
      RemoveSeries(it->second);
      it = series.erase(it);
    }
  }
  for (const VariantSnapshot& variant : variants) {
    if (series.size() >= kMaxVariantLabels) break;
    SeriesOf(variant.name);
  }
}

ServerMetrics::ServerMetrics(std::string model_name) : state_(std::make_unique<State>(std::move(model_name))) {}
ServerMetrics::~ServerMetrics() = default;

void ServerMetrics::ObserveFirstToken(std::string_view variant, double ttft_s) {
  state_->ttft.Observe(ttft_s);
  const std::lock_guard lock(state_->mutex);
  state_->SeriesOf(variant).ttft->Observe(ttft_s);
}

void ServerMetrics::ObserveInterToken(InterTokenGaps& gaps) {
  if (gaps.count() == 0) return;
  state_->gap.ObserveMultiple(gaps.buckets_, gaps.sum_s_);
  gaps.Clear();
}

void ServerMetrics::ObserveEnd(const RequestSample& sample) {
  const size_t reason = ReasonIndex(sample.finished_reason);
  state_->success[reason]->Increment();
  state_->e2e.Observe(sample.e2e_s);
  if (sample.queue_s) state_->queue.Observe(*sample.queue_s);
  if (sample.prefill_s) state_->prefill.Observe(*sample.prefill_s);
  if (sample.decode_s) state_->decode.Observe(*sample.decode_s);
  if (sample.per_output_token_s) state_->per_token.Observe(*sample.per_output_token_s);
  const std::lock_guard lock(state_->mutex);
  State::Series& series = state_->SeriesOf(sample.variant);
  series.outcomes[reason]->Increment();
  series.prompt_tokens->Increment(static_cast<double>(sample.prompt_tokens));
  series.generation_tokens->Increment(static_cast<double>(sample.generation_tokens));
}

std::string ServerMetrics::Render(const MetricsSnapshot& snapshot) {
  std::vector<prometheus::MetricFamily> families = SnapshotFamilies(state_->model_name, snapshot);
  for (prometheus::MetricFamily& family : VariantFamilies(snapshot)) families.push_back(std::move(family));
  const std::lock_guard lock(state_->mutex);
  state_->FollowNames(snapshot.variants);
  for (prometheus::MetricFamily& family : state_->registry.Collect()) families.push_back(std::move(family));
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace df
