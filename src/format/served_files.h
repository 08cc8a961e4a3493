// The files of a variant, beside its tensors, that can change an answer: config.json, generation_config.json, tokenizer
// and chat templates.
#ifndef DELTAFOLD_FORMAT_SERVED_FILES_H_
#define DELTAFOLD_FORMAT_SERVED_FILES_H_

#include <string>
#include <vector>

#include "base/status.h"
#include "format/digest.h"

namespace df {

// Their names below `directory`, in the order in which they are digested. The only errors are those of HasFile and
// ListFiles (base/presence.h).
Result<std::vector<std::string>> ListServedFiles(const std::string& directory);

// Adds name and bytes of each that stands in `directory` to `digest`; whether there is one. The only errors are those
// of ListServedFiles and ReadFileBounded.
Result<bool> AddServedFiles(const std::string& directory, Digest& digest);

}  // namespace df

#endif  // DELTAFOLD_FORMAT_SERVED_FILES_H_
