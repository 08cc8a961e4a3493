#include "tools/engine_runs.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/clock.h"
#include "base/rng.h"

namespace df::tools {
namespace {

constexpr int kMaxRuns =
    100;  // until all sequences decode together: those of a small model may end before others begin

GenerationRequest RequestFor(const Engine& engine, std::shared_ptr<const VariantWeights> variant, size_t n_prompt,
                             size_t n_tokens) {
  GenerationRequest request;
  request.id = "bench";
  for (size_t i = 0; i < n_prompt; ++i) {
    request.prompt.push_back(static_cast<int32_t>(RandomBits(n_prompt, i) % engine.base().config.vocab));
  }
  request.variant = FixedGeneration(std::move(variant));
  request.params.max_tokens = n_tokens;
  request.params.temperature = 0;
  request.params.ignore_eos = true;
  request.events = std::make_shared<EventQueue>();
  return request;
}

// Times of all tokens of a request, in seconds of the engine's clock.
Result<std::vector<double>> AwaitTokens(EventQueue& events) {
  std::vector<double> times;
  for (;;) {
    for (const TokenEvent& event : events.TakeAllBlocking()) {
      if (event.token >= 0) times.push_back(static_cast<double>(event.time_us) * 1e-6);
      if (!event.finish) continue;
      DF_RETURN_IF_ERROR(event.status);
      return times;
    }
  }
}

// The last event of a request goes out just before the figures of its step.
EngineStats IdleStats(const Engine& engine) {
  EngineStats stats = engine.Stats();
  while (stats.n_running + stats.n_waiting > 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    stats = engine.Stats();
  }
  return stats;
}

Result<DecodeTimes> RunOnce(Engine& engine, const VariantList& variants, size_t n_tokens) {
  const EngineStats before = IdleStats(engine);
  std::vector<std::shared_ptr<EventQueue>> events;
  for (const auto& variant : variants) {
    GenerationRequest request = RequestFor(engine, variant, 1, n_tokens);
    request.id = "bench-" + std::to_string(events.size());
    events.push_back(request.events);
    DF_RETURN_IF_ERROR(engine.Submit(std::move(request)));
  }
  std::vector<std::vector<double>> tokens;
  for (const auto& queue : events) {
    DF_ASSIGN_OR_RETURN(std::vector<double> times, AwaitTokens(*queue));
    tokens.push_back(std::move(times));
  }
  // Sequences may have entered one after the other: only what lies between the last one's first token and the first
  // one's last token counts.
  double all_since = tokens.front().front(), all_until = tokens.front().back();
  for (const std::vector<double>& times : tokens) {
    all_since = std::max(all_since, times.front());
    all_until = std::min(all_until, times.back());
  }
  DecodeTimes result;
  const std::vector<double>& first = tokens.front();
  for (size_t i = 1; i < first.size(); ++i) {
    if (first[i - 1] >= all_since && first[i] <= all_until) result.step_s.push_back(first[i] - first[i - 1]);
  }
  // A prompt of one token moves what a decoded token moves: all steps of the base count the same.
  const EngineStats after = IdleStats(engine);
  result.bytes_per_step = (after.step_bytes - before.step_bytes) / static_cast<double>(after.steps - before.steps);
  return result;
}

}  // namespace

Result<RequestTimes> RunAlone(Engine& engine, std::shared_ptr<const VariantWeights> variant, size_t n_prompt,
                              size_t n_tokens) {
  GenerationRequest request = RequestFor(engine, std::move(variant), n_prompt, n_tokens);
  const std::shared_ptr<EventQueue> events = request.events;
  const double start_s = static_cast<double>(SteadyClock().NowUs()) * 1e-6;
  DF_RETURN_IF_ERROR(engine.Submit(std::move(request)));
  DF_ASSIGN_OR_RETURN(const std::vector<double> tokens, AwaitTokens(*events));
  RequestTimes times = {.ttft_s = tokens.front() - start_s, .token_gap_s = {}};
  for (size_t i = 1; i < tokens.size(); ++i) times.token_gap_s.push_back(tokens[i] - tokens[i - 1]);
  return times;
}

Result<DecodeTimes> RunTogether(Engine& engine, const VariantList& variants, size_t n_tokens) {
  for (int run = 0; run < kMaxRuns; ++run) {
    DF_ASSIGN_OR_RETURN(DecodeTimes times, RunOnce(engine, variants, n_tokens));
    if (!times.step_s.empty()) return times;
  }
  return Internal(std::to_string(variants.size()) + " sequences never decoded together: the machine is too busy");
}

}  // namespace df::tools
