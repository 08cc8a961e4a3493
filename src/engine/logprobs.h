// What a step's logits say of tokens, for the requests that asked: of those of their prompts and of those drawn.
#ifndef DELTAFOLD_ENGINE_LOGPROBS_H_
#define DELTAFOLD_ENGINE_LOGPROBS_H_

#include <span>
#include <vector>

#include "engine/batch.h"
#include "kernels/logprobs.h"
#include "model/decoder.h"

namespace df {

// Engine thread only. Holds working memory; the results go into the StepBatch. Nothing is done, and nothing allocated,
// in a step in which nobody asked.
class StepLogprobs {
 public:
  // Rows of logits at a time: together they take as much memory as the draws of 64 sequences, and the head's weights
  // are read once for all of them. A step's rows times a large vocabulary would be hundreds of megabytes.
  static constexpr size_t kPromptRows = 64;

  // Fills the step's prompt_parts. `decoder` has run the step; logits it gave before are lost.
  void OfPrompts(KernelContext& context, Decoder& decoder, StepBatch& step);

  // What does not depend on the draws; `logits` as the model gave them.
  void BeforeDraw(KernelContext& context, MatView<const float> logits, StepBatch& step);
  // Fills the step's logprobs; `logits` may have had tokens forbidden, which are not drawn.
  void AfterDraw(MatView<const float> logits, StepBatch& step);

 private:
  struct PromptRow {
    PromptPart* part = nullptr;
    size_t batch_row = 0;
    int32_t next = 0;                      // the prompt's token that follows
    std::span<kernels::TokenLogprob> out;  // [1 + likeliest] of part->logprobs
  };

  void CollectPromptRows(StepBatch& step);
  void OfBlock(KernelContext& context, Decoder& decoder, std::span<const PromptRow> block);

  std::vector<PromptRow> prompt_rows_;
  std::vector<size_t> batch_rows_;
  std::vector<kernels::LogprobRow> rows_;
  std::vector<size_t> asked_;  // whose rows they are: indices into StepBatch::sampling
  std::vector<kernels::LogNormalizer> normalizers_;
};

}  // namespace df

#endif  // DELTAFOLD_ENGINE_LOGPROBS_H_
