// What the codes would cost a weight and lose of it: the table that `auto` chooses from.
#ifndef DELTAFOLD_CODEC_SURVEY_H_
#define DELTAFOLD_CODEC_SURVEY_H_

#include <vector>

#include "base/thread_pool.h"
#include "codec/choose.h"
#include "codec/code.h"

namespace df {

// `auto` gives the vocabulary's weights no low rank: adapters could add no rows to them.
enum class SurveyKind { kMatrix, kVocabulary };

// Candidates for `pair`, each measured: those of signs and rows by encoding, those of low rank by the singular values.
//   error  |D - D^| / |D|
//   loss   its square, however large the tensor or the change; what each counts beside others is the caller's to say
// A product that is proven to have been fused in (fused.h), of whatever rank, has loss 0, and it alone beside exact
// ones. A matrix has the candidate `int8` only where few of its rows changed. An unchanged weight has the one candidate
// `exact` of no bytes. With `inputs` (null: none) that have C, codes are fitted to them
// and measured by the outputs: error = sqrt(tr(R C R^T) / tr(D C D^T)), R = D - D^; a low rank alone is then left out,
// as it would fit the text and nothing else. `by_signal`: losses are shares of the weight's own outputs instead of what
// the fine-tune did to them, loss = tr(R C R^T) / tr(W C W^T), or |R|^2 / |W|^2. Memory: half the fine-tune's tensor
// and what RandomizedSvd takes for rank 64, with inputs what fitting takes besides. The errors are those of Encode.
struct SurveyOptions {
  SurveyKind kind = SurveyKind::kMatrix;
  const WeightInputs* inputs = nullptr;
  bool by_signal = false;
};
Result<std::vector<Candidate>> SurveyWeight(ThreadPool& pool, const WeightPair& pair, const SurveyOptions& options);

// The one candidate of a weight whose code is given; its bytes are those of the code as it is, or fitted to inputs.
enum class SurveyFor { kAsItIs, kFitted };
Result<std::vector<Candidate>> SurveyFixed(ThreadPool& pool, const WeightPair& pair, const Code& code,
                                           SurveyFor purpose = SurveyFor::kAsItIs);

}  // namespace df

#endif  // DELTAFOLD_CODEC_SURVEY_H_
