// What a compression will store and how long it will take, before it is done: bytes from the shapes and from what
// changed at all, time from a sample.
#ifndef DELTAFOLD_CODEC_ESTIMATE_H_
#define DELTAFOLD_CODEC_ESTIMATE_H_

#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "codec/compressor.h"
#include "format/checkpoint.h"

namespace df {

// `at_most` is larger than `likely` only where the weights decide: the type of low-rank factors, and whether scales are
// fitted. Both are bounds where `is_bound`: rows of matrices that may have changed or not, a rank that is to be found,
// what `auto` may take.
struct BytesEstimate {
  uint64_t likely = 0;
  uint64_t at_most = 0;
  bool is_bound = false;

  bool IsExact() const { return !is_bound && likely == at_most; }
  void Add(const BytesEstimate& other);
};

struct CodeEstimate {
  std::string code;     // of the matrices, as --code takes it
  BytesEstimate bytes;  // CompressReport::delta_bytes
  double seconds = 0;   // of reading, encoding and, with a text, fitting
};

// The text that codes will be fitted to.
struct FittingText {
  size_t n_tokens = 0;
  bool is_own = true;  // the fine-tune writes it first
};

struct CompressEstimate {
  size_t n_weights = 0, n_unchanged = 0;
  uint64_t full_bytes = 0;
  uint64_t n_elements = 0;
  uint64_t sample_bytes = 0;         // of the fine-tune, that the time was measured on
  CodeEstimate asked;                // as the options say
  std::vector<CodeEstimate> others;  // with other codes of the matrices, all else as the options say
};

// Reads of every matrix as much as it takes to see that it changed (all of it where it did not), the vocabulary's
// weights in full, and encodes a sample of at most 32 MB of the largest matrix by every code. Seconds are those of the
// sample for each element: of reading it for the first time, so that they hold for the medium it came from, and of CPU
// time, so that other processes do not count. With a `text` a smaller sample is fitted to
// made-up inputs too; from it follow, by the numbers of multiplications, the fits of all codes and the passes of the
// text through both models. The fingerprint of a base that is not remembered and writing are not among the seconds.
// Errors are those of Compress before it writes.
Result<CompressEstimate> EstimateCompress(ThreadPool& pool, const Checkpoint& base, const Checkpoint& fine_tune,
                                          const CompressOptions& options, const std::optional<FittingText>& text = {});

}  // namespace df

#endif  // DELTAFOLD_CODEC_ESTIMATE_H_
