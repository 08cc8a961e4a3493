#include "engine/batch.h"

#include <algorithm>

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

size_t VocabOf(const Sequence& sequence, size_t base_vocab) {
  return sequence.request.variant ? sequence.request.variant->info().config.vocab : base_vocab;
}

kernels::SampleRow DrawFor(const Sequence& sequence, size_t row, size_t base_vocab) {
  const GenerationRequest& request = sequence.request;
  return {.row = row,
          .vocab = VocabOf(sequence, base_vocab),
          .temperature = static_cast<float>(request.params.temperature),
          .top_k = request.params.top_k < 0 ? 0 : request.params.top_k,
          .top_p = static_cast<float>(request.params.top_p),
          .seed = sequence.seed,
          .draw = sequence.generated.size()};
}

// Room for `n_rows` tokens, each with the likeliest ones beside it; none where they are not wanted.
std::vector<kernels::TokenLogprob> RoomFor(size_t n_rows, const std::optional<size_t>& n_top, size_t vocab) {
  return std::vector<kernels::TokenLogprob>(n_top ? n_rows * (1 + std::min(*n_top, vocab)) : 0);
}

// The piece's rows have just been added.
void AddPromptPart(const Piece& piece, size_t base_vocab, StepBatch& step) {
  const Sequence& sequence = *piece.sequence;
  const size_t first = std::max(sequence.n_cached, sequence.n_prompt_told);
  const size_t end = std::min(sequence.n_cached + piece.n_rows, sequence.n_prompt_to_tell());
  if (first >= end) return;
  PromptPart& part = step.prompt_parts.emplace_back();
  part.sequence = piece.sequence;
  part.first_row = step.batch.tokens.size() - piece.n_rows + (first - sequence.n_cached);
  part.n_rows = end - first;
  part.vocab = VocabOf(sequence, base_vocab);
  part.reaches_end = piece.ReachesEnd();
  part.logprobs = RoomFor(part.n_rows, sequence.request.params.prompt_logprobs, part.vocab);
}

void AddDraw(const Piece& piece, size_t base_vocab, StepBatch& step) {
  const Sequence& sequence = *piece.sequence;
  step.batch.logit_rows.push_back(step.batch.tokens.size() - 1);
  step.sample_rows.push_back(DrawFor(sequence, step.sampling.size(), base_vocab));
  step.logprobs.push_back(RoomFor(1, sequence.request.params.logprobs, step.sample_rows.back().vocab));
  step.sampling.push_back(piece.sequence);
}

}  // namespace

void BuildStep(std::span<const Piece> pieces, size_t base_vocab, StepBatch& step) {
  step.batch.Clear();
  step.sampling.clear();
  step.sample_rows.clear();
  step.complete.clear();
  step.prompt_parts.clear();
  step.logprobs.clear();
  for (const Piece& piece : pieces) {
    AddRows(piece, step.batch);
    AddPromptPart(piece, base_vocab, step);
    if (!piece.ReachesEnd()) continue;
    if (piece.sequence->IsComplete()) {
      step.complete.push_back(piece.sequence);
    } else {
      AddDraw(piece, base_vocab, step);
    }
  }
  step.sampled.assign(step.sample_rows.size(), {});
}

}  // namespace df
