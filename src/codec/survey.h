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
//   loss   its square: what a fine-tune did to each tensor counts the same, however large the tensor or the change
// A low rank whose rest is no more than the rounding of the fine-tune itself (low_rank.h) loses nothing. An unchanged
// weight has the one candidate `exact` of no bytes. Memory: half the fine-tune's tensor and what RandomizedSvd takes
// for rank 64. The errors are those of Encode.
Result<std::vector<Candidate>> SurveyWeight(ThreadPool& pool, const WeightPair& pair, SurveyKind kind);

// The one candidate of a weight whose code is given.
Result<std::vector<Candidate>> SurveyFixed(ThreadPool& pool, const WeightPair& pair, const Code& code);

}  // namespace df

#endif  // DELTAFOLD_CODEC_SURVEY_H_
