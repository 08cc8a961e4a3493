#include "engine/logprobs.h"

#include <algorithm>

namespace df {

void StepLogprobs::OfPrompts(KernelContext& context, Decoder& decoder, StepBatch& step) {
  CollectPromptRows(step);
  const std::span<const PromptRow> all = prompt_rows_;
  for (size_t begin = 0; begin < all.size(); begin += kPromptRows) {
    OfBlock(context, decoder, all.subspan(begin, std::min(kPromptRows, all.size() - begin)));
  }
}

void StepLogprobs::CollectPromptRows(StepBatch& step) {
  prompt_rows_.clear();
  for (PromptPart& part : step.prompt_parts) {
    const size_t n_each = part.logprobs.size() / part.n_rows;
    for (size_t i = 0; i < part.n_rows; ++i) {
      prompt_rows_.push_back({.part = &part,
                              .batch_row = part.first_row + i,
                              .next = part.sequence->request.prompt[part.sequence->n_prompt_told + i + 1],
                              .out = std::span(part.logprobs).subspan(i * n_each, n_each)});
    }
  }
}

void StepLogprobs::OfBlock(KernelContext& context, Decoder& decoder, std::span<const PromptRow> block) {
  batch_rows_.clear();
  rows_.clear();
  for (const PromptRow& row : block) {
    rows_.push_back(
        {.row = batch_rows_.size(), .vocab = row.part->vocab, .n_top = row.out.size() - 1, .top = row.out.data() + 1});
    batch_rows_.push_back(row.batch_row);
  }
  normalizers_.assign(rows_.size(), {});
  const MatView<const float> logits = decoder.Logits(context, batch_rows_);
  kernels::TopLogprobs(context, logits, rows_, normalizers_);
  for (size_t i = 0; i < block.size(); ++i) {
    if (!normalizers_[i].servable) block[i].part->is_broken = true;
    block[i].out[0] = kernels::LogprobOf(logits, rows_[i], normalizers_[i], block[i].next);
  }
}

void StepLogprobs::BeforeDraw(KernelContext& context, MatView<const float> logits, StepBatch& step) {
  asked_.clear();
  rows_.clear();
  for (size_t i = 0; i < step.sampling.size(); ++i) {
    std::vector<kernels::TokenLogprob>& out = step.logprobs[i];
    if (out.empty()) continue;
    asked_.push_back(i);
    rows_.push_back({.row = i, .vocab = step.sample_rows[i].vocab, .n_top = out.size() - 1, .top = out.data() + 1});
  }
  if (asked_.empty()) return;
  normalizers_.assign(rows_.size(), {});
  kernels::TopLogprobs(context, logits, rows_, normalizers_);
}

void StepLogprobs::AfterDraw(MatView<const float> logits, StepBatch& step) {
  for (size_t i = 0; i < asked_.size(); ++i) {
    const int32_t token = step.sampled[asked_[i]].token;
    if (token < 0) continue;
    step.logprobs[asked_[i]][0] = kernels::LogprobOf(logits, rows_[i], normalizers_[i], token);
  }
}

}  // namespace df
