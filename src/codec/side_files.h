// The files beside the weights: config, tokenizer, chat template, generation defaults.
#ifndef DELTAFOLD_CODEC_SIDE_FILES_H_
#define DELTAFOLD_CODEC_SIDE_FILES_H_

#include <string>
#include <vector>

#include "format/delta_dir.h"

namespace df {

// Adds the fine-tune's config.json, and those of tokenizer.json, tokenizer_config.json and generation_config.json that
// differ from the base's; its chat template files all together when any differs. Returns the names added. The only
// errors are those of reading a file, kResourceExhausted (a file larger than kMaxSideFileBytes, before anything of it
// is read; too many templates) and the writer's.
Result<std::vector<std::string>> CopyChangedFiles(const std::string& base_directory,
                                                  const std::string& fine_tune_directory, DeltaWriter& writer);

// Copies what belongs to a full checkpoint beside weights and config into `target`: each file, and the chat templates
// together, from the variant where it has them, else from the base. Errors as above.
Status CopyTextFiles(const std::string& base_directory, const std::string& variant_directory,
                     const std::string& target);

}  // namespace df

#endif  // DELTAFOLD_CODEC_SIDE_FILES_H_
