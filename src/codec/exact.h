// The codes that lose nothing: absent (unchanged), rows (a few changed rows, of embeddings and heads) and raw.
#ifndef DELTAFOLD_CODEC_EXACT_H_
#define DELTAFOLD_CODEC_EXACT_H_

#include "base/thread_pool.h"
#include "codec/codec.h"

namespace df {

// Rows of the fine-tune that differ from the base or that it lacks, increasing. The only error is that of
// FindNonFinite.
Result<std::vector<int32_t>> ChangedRows(ThreadPool& pool, const WeightPair& pair);

enum class ExactCode { kSmallest, kRaw, kRows };

// An empty delta when nothing changed. Otherwise the whole weight as the fine-tune stores it (kRaw: a view, no copy),
// those of its rows that changed and all that the base lacks (kRows: a copy of them), or whichever of the two is
// smaller. The only error is that of FindNonFinite.
Result<EncodedWeight> EncodeExact(ThreadPool& pool, const WeightPair& pair, ExactCode code);

// Adds the rows that the base lacks to `encoded` as rows: what EncodeSign leaves out. Their only error is a NaN or
// infinity.
Status AddNewRows(const WeightPair& pair, EncodedWeight& encoded);

}  // namespace df

#endif  // DELTAFOLD_CODEC_EXACT_H_
