#include "engine/batch.h"

namespace df {
namespace {

void AddRows(const Piece& piece, Batch& batch) {
  const Sequence& sequence = *piece.sequence;
  const size_t begin = batch.tokens.size();
  for (size_t i = 0; i < piece.n_rows; ++i) batch.tokens.push_back(sequence.Token(sequence.n_cached + i));
  batch.segments.push_back({.begin = begin,
                            .end = batch.tokens.size(),
                            .phase = piece.phase,
                            .variant = sequence.lease.weights(),
                            .position = sequence.n_cached,
                            .block_table = sequence.kv.block_table()});
}

kernels::SampleRow DrawFor(const Sequence& sequence, size_t row, size_t base_vocab) {
  const GenerationRequest& request = sequence.request;
  return {.row = row,
          .vocab = request.variant ? request.variant->info().config.vocab : base_vocab,
          .temperature = static_cast<float>(request.params.temperature),
          .top_k = request.params.top_k < 0 ? 0 : request.params.top_k,
          .top_p = static_cast<float>(request.params.top_p),
          .seed = sequence.seed,
          .draw = sequence.generated.size()};
}

}  // namespace

void BuildStep(std::span<const Piece> pieces, size_t base_vocab, StepBatch& step) {
  step.batch.Clear();
  step.sampling.clear();
  step.sample_rows.clear();
  for (const Piece& piece : pieces) {
    AddRows(piece, step.batch);
    if (!piece.ReachesEnd()) continue;
    step.batch.logit_rows.push_back(step.batch.tokens.size() - 1);
    step.sample_rows.push_back(DrawFor(*piece.sequence, step.sampling.size(), base_vocab));
    step.sampling.push_back(piece.sequence);
  }
  step.sampled.assign(step.sample_rows.size(), {});
}

}  // namespace df
