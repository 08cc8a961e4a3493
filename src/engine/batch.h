// The scheduler's plan as the model and the sampler take it.
#ifndef DELTAFOLD_ENGINE_BATCH_H_
#define DELTAFOLD_ENGINE_BATCH_H_

#include <span>
#include <vector>

#include "engine/scheduler.h"
#include "kernels/sample.h"
#include "model/decoder.h"

namespace df {

// One step. `sample_rows[i]` draws the next token of `sampling[i]` from row i of the step's logits.
struct StepBatch {
  Batch batch;
  std::vector<Sequence*> sampling;
  std::vector<kernels::SampleRow> sample_rows;
  std::vector<kernels::Sampled> sampled;  // [sample_rows.size()], to be filled by kernels::Sample
};

// Rewrites `step`, reusing its memory. `base_vocab` counts for rows of the base.
void BuildStep(std::span<const Piece> pieces, size_t base_vocab, StepBatch& step);

}  // namespace df

#endif  // DELTAFOLD_ENGINE_BATCH_H_
