// The files of a variant, beside its tensors, that can change an answer: config.json, generation_config.json, tokenizer
// and chat templates.
#ifndef DELTAFOLD_FORMAT_SERVED_FILES_H_
#define DELTAFOLD_FORMAT_SERVED_FILES_H_

#include <string>

#include "base/status.h"
#include "format/digest.h"

namespace df {

// Adds name and bytes of each that stands in `directory` to `digest`; whether there is one. The only errors are those
// of ReadFileBounded and ListFiles, but for the absence of a file.
Result<bool> AddServedFiles(const std::string& directory, Digest& digest);

}  // namespace df

#endif  // DELTAFOLD_FORMAT_SERVED_FILES_H_
