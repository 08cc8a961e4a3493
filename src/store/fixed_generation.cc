#include "store/generation.h"

namespace df {
namespace {

class Fixed final : public Generation {
 public:
  explicit Fixed(std::shared_ptr<const VariantWeights> weights)
      : weights_(std::move(weights)),
        info_{.kind = weights_->kind,
              .digest = weights_->digest,
              .config = weights_->config,
              .resident_bytes = weights_->bytes} {}

  const GenerationInfo& info() const override { return info_; }
  LeaseAttempt TryLease(int64_t /*now_us*/) const override { return {.lease = {weights_, {}}, .failure = {}}; }

 private:
  const std::shared_ptr<const VariantWeights> weights_;
  const GenerationInfo info_;
};

}  // namespace

GenerationRef FixedGeneration(std::shared_ptr<const VariantWeights> weights) {
  return weights == nullptr ? nullptr : std::make_shared<const Fixed>(std::move(weights));
}

}  // namespace df
