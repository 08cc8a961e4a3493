// The released BitDelta files (github.com/FasterDecoding/BitDelta, save_diff) as a delta directory: diff.pt, read as
// data (format/torch_pickle.h), or the same tensors in safetensors.
//
//   M.mask    I32 [d_in / 32, d_out]: bit i of word [w, o] is the sign of column 32 w + i of row o, 1 = not negative
//   M.coeff   one float: the scale of all of M.weight
//   others    parameters in full, by their own names: embedding, head, norms
//
// so M.weight = base + coeff * sign: the code `scalar`, bit for bit.
#ifndef DELTAFOLD_CODEC_IMPORT_BITDELTA_H_
#define DELTAFOLD_CODEC_IMPORT_BITDELTA_H_

#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "format/checkpoint.h"

namespace df {

struct ImportOptions {
  std::string base_name = {};  // for people
  std::string source_name = {};
  // A directory with the fine-tune's config.json and what it has of tokenizer and templates. Empty: the base's, with
  // the vocabulary that the file has.
  std::string config_directory = {};
  bool replace = false;  // an existing directory
};

struct ImportReport {
  size_t n_signs = 0;      // matrices of signs
  size_t n_full = 0;       // parameters stored in full, or their changed rows
  size_t n_unchanged = 0;  // parameters in the file that are the base's
  uint64_t file_bytes = 0, delta_bytes = 0;
  std::string base_fingerprint;
};

// Writes `directory`, which appears whole or not at all, from `path`. The file does not say which base it was taken
// against: `base` is believed. The only errors are those of reading the file, kUnsupported (an entry that is none of
// the above, by name), kCorrupt (a mask without a coefficient, another shape, NaN), kFailedPrecondition (the directory
// exists; a config of another model) and kIo.
Result<ImportReport> ImportBitDelta(ThreadPool& pool, const Checkpoint& base, const std::string& path,
                                    const std::string& directory, const ImportOptions& options);

}  // namespace df

#endif  // DELTAFOLD_CODEC_IMPORT_BITDELTA_H_
