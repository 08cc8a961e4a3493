// What a served name stands for at one moment: one immutable content, known before its weights are in memory and after
// they have left it.
//
// A queued request holds a GenerationRef: identity alone. The scheduler takes a ResidencyLease when the request enters
// the running set and ends it when the request leaves: those who wait never hold memory, so more variants than places
// cannot block each other.
#ifndef DELTAFOLD_STORE_GENERATION_H_
#define DELTAFOLD_STORE_GENERATION_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/status.h"
#include "format/model_config.h"
#include "model/weights.h"

namespace df {

struct GenerationInfo {
  VariantKind kind = VariantKind::kDelta;
  std::string digest;  // of all that can change an answer, its parent's included: 32 hex digits
  ModelConfig config;
  uint64_t stored_bytes = 0;  // on disk: weights only
  // In memory when resident: weights only, of its own (a parent's are the parent's). Exact, but for adapters that
  // replace rows of tokens: those hold at most this.
  uint64_t resident_bytes = 0;
};

// Weights that stay in memory while this lives. Move-only; may outlive its Generation, ends on any thread.
class ResidencyLease {
 public:
  ResidencyLease() = default;
  // `end` runs once, when the lease ends; may be empty.
  ResidencyLease(std::shared_ptr<const VariantWeights> weights, std::function<void()> end)
      : weights_(std::move(weights)), end_(std::move(end)) {}
  ResidencyLease(ResidencyLease&& other) noexcept
      : weights_(std::move(other.weights_)), end_(std::exchange(other.end_, {})) {}
  ResidencyLease& operator=(ResidencyLease&& other) noexcept {
    if (this == &other) return *this;
    End();
    weights_ = std::move(other.weights_);
    end_ = std::exchange(other.end_, {});
    return *this;
  }
  ~ResidencyLease() { End(); }

  const VariantWeights* weights() const { return weights_.get(); }  // null: none is held
  void End() {
    weights_.reset();
    if (const auto end = std::exchange(end_, {})) end();
  }

 private:
  std::shared_ptr<const VariantWeights> weights_;
  std::function<void()> end_;
};

struct LeaseAttempt {
  // Weights when granted; without them: on their way when `failure` is ok, not to be had now when it is not
  // (kUnavailable with the cause, or what the load found).
  ResidencyLease lease;
  Status failure;

  bool granted() const { return lease.weights() != nullptr; }
};

// Immutable identity, thread-safe.
class Generation {
 public:
  virtual ~Generation() = default;
  virtual const GenerationInfo& info() const = 0;
  // Never blocks. Asking is the demand that makes a load start: a caller who still waits asks again after each news
  // (Engine::Wake), and whoever has not asked for a while wants it no more. `now_us` by the engine's clock.
  virtual LeaseAttempt TryLease(int64_t now_us) const = 0;
  // A request for it begins: counted once as a lookup, and a hit when the weights are there; a load starts early, while
  // the request is queued. Thread-safe; never blocks.
  virtual void CountRequest(int64_t /*now_us*/) const {}
  // Nobody waits for it any more who has asked or was counted, and got no lease: what was kept or is being cleared for
  // him is others'. Thread-safe; never blocks.
  virtual void EndAsk() const {}
};
using GenerationRef = std::shared_ptr<const Generation>;  // null: the base

// Weights that are always there: for programs that load what they use, and for tests. Null for null.
GenerationRef FixedGeneration(std::shared_ptr<const VariantWeights> weights);

}  // namespace df

#endif  // DELTAFOLD_STORE_GENERATION_H_
