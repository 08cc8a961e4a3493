#include "server/text_service.h"

#include "engine/prompt_tokens.h"
#include "kernels/attention.h"
#include "server/store_snapshot.h"

namespace df::server {
namespace {

class EngineTextService final : public TextService {
 public:
  EngineTextService(Engine& engine, VariantStore& store) : engine_(engine), store_(store) {}

  VariantStore& store() const override { return store_; }
  std::string SystemFingerprint(const Variant& variant) const override {
    // 48 bits of each: enough to tell the weights of one deployment apart, short enough to read.
    constexpr size_t kDigits = 12;
    const std::string fingerprint = "fp_" + engine_.base().fingerprint.substr(0, kDigits);
    return variant.IsBase() ? fingerprint : fingerprint + "_" + variant.generation->info().digest.substr(0, kDigits);
  }
  size_t ContextLength(const Variant& variant) const override { return df::ContextLength(engine_, variant); }
  size_t MaxLogprobs() const override { return engine_.options().max_logprobs; }
  SamplingParams DefaultSampling(const Variant& variant) const override { return df::DefaultSampling(variant); }
  Result<std::vector<int32_t>> PromptTokens(const TextRequest& request) const override {
    return df::PromptTokens(request, ContextLength(*request.variant));
  }
  Result<std::unique_ptr<TextStream>> Start(TextRequest request, std::function<void()> wake) override {
    return StartText(engine_, std::move(request), std::move(wake));
  }
  MetricsSnapshot Snapshot() const override {
    const EngineStats stats = engine_.Stats();
    MetricsSnapshot snapshot = StoreSnapshot(store_);
    snapshot.n_running = stats.n_running;
    snapshot.n_waiting = stats.n_waiting;
    snapshot.kv_block_tokens = kernels::kKvBlockTokens;
    snapshot.kv_blocks_used = stats.kv_blocks_used;
    snapshot.kv_blocks_total = stats.kv_blocks_total;
    snapshot.prompt_tokens = stats.prompt_tokens;
    snapshot.generation_tokens = stats.generation_tokens;
    snapshot.preemptions = stats.preemptions;
    snapshot.prefix_cache_queries = stats.prefix_cache_queries;
    snapshot.prefix_cache_hits = stats.prefix_cache_hits;
    snapshot.kv_bytes = stats.kv_bytes;
    snapshot.steps = stats.steps;
    snapshot.step_bytes = stats.step_bytes;
    snapshot.step_flops = stats.step_flops;
    snapshot.step_seconds = stats.step_seconds;
    return snapshot;
  }
  bool Healthy() const override { return engine_.Healthy(); }

 private:
  Engine& engine_;
  VariantStore& store_;
};

}  // namespace

std::unique_ptr<TextService> MakeTextService(Engine& engine, VariantStore& store) {
  return std::make_unique<EngineTextService>(engine, store);
}

}  // namespace df::server
