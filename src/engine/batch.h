// The scheduler's plan as the model and the sampler take it.
#ifndef DELTAFOLD_ENGINE_BATCH_H_
#define DELTAFOLD_ENGINE_BATCH_H_

#include <span>
#include <vector>

#include "engine/scheduler.h"
#include "kernels/logprobs.h"
#include "kernels/sample.h"
#include "model/decoder.h"

namespace df {

// Rows of a step of which a client wants to know what they say of the prompt's next tokens.
struct PromptPart {
  Sequence* sequence = nullptr;
  size_t first_row = 0;  // of the batch
  size_t n_rows = 0;     // >= 1
  size_t vocab = 0;
  bool reaches_end = false;                     // the sequence is in `sampling` or `complete` too
  bool is_broken = false;                       // there are logits that hold no number: set by StepLogprobs
  std::vector<kernels::TokenLogprob> logprobs;  // [n_rows][1 + likeliest], as in TokenEvent
};

// One step. `sample_rows[i]` draws the next token of `sampling[i]` from row i of the step's logits.
struct StepBatch {
  Batch batch;
  std::vector<Sequence*> sampling;
  std::vector<Sequence*> complete;  // their prompts end in this step, and they want no token
  std::vector<PromptPart> prompt_parts;
  std::vector<std::vector<kernels::TokenLogprob>> logprobs;  // [sampling.size()], as in TokenEvent
  std::vector<kernels::SampleRow> sample_rows;
  std::vector<kernels::Sampled> sampled;  // [sample_rows.size()], to be filled by kernels::Sample
};

// Rewrites `step`, reusing its memory. `base_vocab` counts for rows of the base.
void BuildStep(std::span<const Piece> pieces, size_t base_vocab, StepBatch& step);

}  // namespace df

#endif  // DELTAFOLD_ENGINE_BATCH_H_
