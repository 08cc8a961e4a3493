// Requests straight to an engine, and the times of their tokens.
#ifndef DELTAFOLD_TOOLS_ENGINE_RUNS_H_
#define DELTAFOLD_TOOLS_ENGINE_RUNS_H_

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace df::tools {

using VariantList = std::vector<std::shared_ptr<const VariantWeights>>;

struct RequestTimes {
  double ttft_s = 0;                // submission to first token
  std::vector<double> token_gap_s;  // between tokens
};

// One greedy request alone on the engine: `n_prompt` made-up tokens, `n_tokens` >= 1 to generate; `variant` null =
// base. The only errors are the engine's.
Result<RequestTimes> RunAlone(Engine& engine, std::shared_ptr<const VariantWeights> variant, size_t n_prompt,
                              size_t n_tokens);

struct DecodeTimes {
  std::vector<double> step_s;  // steps in which every sequence decoded
  double bytes_per_step = 0;   // that a step had to move (kernels/cost.h), the first and last ones among them
};

// One sequence for each of `variants` (null = base) at once, prompts of one token, `n_tokens` >= 3 each; again where
// they never decoded together, hence at least one step. The only errors are the engine's and kInternal (never did).
Result<DecodeTimes> RunTogether(Engine& engine, const VariantList& variants, size_t n_tokens);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_ENGINE_RUNS_H_
