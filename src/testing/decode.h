// Runs a model over token ids in the ways that must agree: as one prefill, in chunks, or token by token. For tests
// only.
#ifndef DELTAFOLD_TESTING_DECODE_H_
#define DELTAFOLD_TESTING_DECODE_H_

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include "model/decoder.h"

namespace df::testing {

// One sequence in a KV pool of its own.
struct Sequence {
  Sequence(const BaseWeights& base, const VariantWeights* v, size_t max_tokens)
      : variant(v), kv(base.config, {.dtype = DType::kF32, .n_blocks = (max_tokens + 15) / 16}), blocks(kv.n_blocks()) {
    // Blocks in reverse: a block table that is the identity would hide a missing look-up.
    std::iota(blocks.rbegin(), blocks.rend(), 0);
  }

  const VariantWeights* variant;
  KvPool kv;
  std::vector<int32_t> blocks;
  size_t length = 0;
};

inline std::vector<float> CopyRow(MatView<const float> logits, size_t row, size_t vocab) {
  return {logits.Row(row), logits.Row(row) + vocab};
}

// Feeds `tokens` as one step of the given phase; returns the logits of every row.
inline std::vector<std::vector<float>> Feed(KernelContext& context, Decoder& decoder, Sequence& sequence,
                                            std::span<const int32_t> tokens, kernels::Phase phase) {
  Batch batch;
  batch.tokens.assign(tokens.begin(), tokens.end());
  batch.segments.push_back({.begin = 0,
                            .end = tokens.size(),
                            .phase = phase,
                            .variant = sequence.variant,
                            .position = sequence.length,
                            .block_table = sequence.blocks.data()});
  for (size_t i = 0; i < tokens.size(); ++i) batch.logit_rows.push_back(i);
  const MatView<const float> logits = decoder.Step(context, batch, sequence.kv);
  sequence.length += tokens.size();
  const size_t vocab = sequence.variant ? sequence.variant->config.vocab : decoder.base().config.vocab;
  std::vector<std::vector<float>> rows;
  for (size_t i = 0; i < tokens.size(); ++i) rows.push_back(CopyRow(logits, i, vocab));
  return rows;
}

// Logits of a whole prompt, in steps of at most `chunk` tokens.
inline std::vector<std::vector<float>> Logits(KernelContext& context, Decoder& decoder, Sequence& sequence,
                                              std::span<const int32_t> tokens, kernels::Phase phase, size_t chunk) {
  std::vector<std::vector<float>> all;
  for (size_t begin = 0; begin < tokens.size(); begin += chunk) {
    const auto part = tokens.subspan(begin, std::min(chunk, tokens.size() - begin));
    for (std::vector<float>& row : Feed(context, decoder, sequence, part, phase)) all.push_back(std::move(row));
  }
  return all;
}

inline int32_t ArgMax(const std::vector<float>& row) {
  return static_cast<int32_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

}  // namespace df::testing

#endif  // DELTAFOLD_TESTING_DECODE_H_
