// Teacher-forced scores of token sequences: cross entropy, divergence from a reference model and agreement of the most
// probable tokens, without ever holding the logits of a whole text.
#ifndef DELTAFOLD_EVAL_SCORER_H_
#define DELTAFOLD_EVAL_SCORER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/status.h"
#include "model/decoder.h"
#include "tensor/kernel_context.h"

namespace df::eval {

// Tokens whose probability, given all before them, is asked for: those from `first_scored` (>= 1) on.
struct ScoredSequence {
  std::vector<int32_t> tokens;
  size_t first_scored = 1;
};

// Who answers: a base as it is, or a variant on it.
struct Scored {
  std::shared_ptr<const BaseWeights> base;
  std::shared_ptr<const VariantWeights> variant = nullptr;  // null = the base

  size_t vocab() const { return variant ? variant->config.vocab : base->config.vocab; }
};

// Sums over the scored tokens of one sequence. Logarithms are natural.
struct SequenceScore {
  size_t n_tokens = 0;
  double cross_entropy = 0;  // -log p(token)
  double divergence = 0;     // KL(reference || this) = sum over the vocabulary of p_ref (log p_ref - log p)
  size_t n_agree = 0;        // most probable token is the reference's
  size_t n_right = 0;        // most probable token is the sequence's
};

struct ScorerOptions {
  size_t rows_a_step = 512;
  uint64_t logit_bytes = uint64_t{64} << 20;  // of one model's logits in flight: at least one row
  // Tokens whose keys and values are held at once for each model, unless one sequence is longer.
  size_t kv_tokens = 1024;
  // Called after every step with the tokens done, over all models; false ends with kCancelled. May be empty.
  std::function<bool(uint64_t done_tokens)> on_progress = {};
};

// Scores of each of `models` on each sequence: [models.size()][sequences.size()]. `models[0]` is the reference when
// `has_reference`; divergence and agreement are then of all models whose vocabulary is the reference's, else 0. Models
// on one base share a decoder. Keys and values are f32, log-probabilities f32 (kernels/sample.h), sums f64.
//
// Engine-free: threads and scratch are `context`'s. Tokens must be below every model's vocabulary and sequences no
// longer than its positions: the only errors are kInvalidArgument saying which is not, kCorrupt (a model's logits are
// not finite), kCancelled and CheckIntact's.
Result<std::vector<std::vector<SequenceScore>>> ScoreSequences(KernelContext& context, std::span<const Scored> models,
                                                               bool has_reference,
                                                               std::span<const ScoredSequence> sequences,
                                                               const ScorerOptions& options);

// Tokens that ScoreSequences feeds: what on_progress counts towards, for one model.
uint64_t FedTokens(std::span<const ScoredSequence> sequences);

}  // namespace df::eval

#endif  // DELTAFOLD_EVAL_SCORER_H_
