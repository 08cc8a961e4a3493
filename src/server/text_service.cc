#include "server/text_service.h"

#include "engine/prompt_tokens.h"
#include "kernels/attention.h"

namespace df::server {
namespace {

class EngineTextService final : public TextService {
 public:
  EngineTextService(Engine& engine, VariantStore& store) : engine_(engine), store_(store) {}

  std::shared_ptr<const Variant> FindOrNull(std::string_view name) const override { return store_.FindOrNull(name); }
  std::vector<std::shared_ptr<const Variant>> List() const override { return store_.List(); }
  const std::string& base_name() const override { return store_.base_name(); }
  std::string SystemFingerprint(const Variant& variant) const override {
    // 48 bits of each: enough to tell the weights of one deployment apart, short enough to read.
    constexpr size_t kDigits = 12;
    const std::string fingerprint = "fp_" + engine_.base().fingerprint.substr(0, kDigits);
    return variant.IsBase() ? fingerprint : fingerprint + "_" + variant.generation->info().digest.substr(0, kDigits);
  }
  size_t ContextLength(const Variant& variant) const override { return df::ContextLength(engine_, variant); }
  SamplingParams DefaultSampling(const Variant& variant) const override { return df::DefaultSampling(variant); }
  Result<std::vector<int32_t>> PromptTokens(const TextRequest& request) const override {
    return df::PromptTokens(request, ContextLength(*request.variant));
  }
  Result<std::unique_ptr<TextStream>> Start(TextRequest request, std::function<void()> wake) override {
    return StartText(engine_, std::move(request), std::move(wake));
  }
  MetricsSnapshot Snapshot() const override {
    const EngineStats stats = engine_.Stats();
    return {.n_running = stats.n_running,
            .n_waiting = stats.n_waiting,
            .kv_block_tokens = kernels::kKvBlockTokens,
            .kv_blocks_used = stats.kv_blocks_used,
            .kv_blocks_total = stats.kv_blocks_total,
            .prompt_tokens = stats.prompt_tokens,
            .generation_tokens = stats.generation_tokens,
            .preemptions = stats.preemptions,
            .weight_bytes = engine_.base().bytes + store_.Stats().resident_bytes,
            .kv_bytes = stats.kv_bytes,
            .steps = stats.steps,
            .step_bytes = stats.step_bytes,
            .step_flops = stats.step_flops,
            .step_seconds = stats.step_seconds};
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
