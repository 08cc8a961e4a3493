// What a directory holds, judged by the names of its files.
#ifndef DELTAFOLD_FORMAT_VARIANT_KIND_H_
#define DELTAFOLD_FORMAT_VARIANT_KIND_H_

#include <string>
#include <vector>

#include "base/status.h"

namespace df {

enum class DirectoryKind {
  kNothing,  // nothing of ours
  kModel,    // a full model: config.json
  kDelta,    // delta_config.json, or its tensors
  kAdapter,  // adapter_config.json, here or in a folder of the adapter's name
};

// The only errors are those of HasFile (base/presence.h: one of these names is a link to nothing or no regular file)
// and kIo (it cannot be listed). What is not there is nothing.
Result<DirectoryKind> KindOfDirectory(const std::string& directory);

// The folders of `directory` that hold an adapter, ascending: PEFT saves one that is not called "default" into a folder
// of its name. Errors as above.
Result<std::vector<std::string>> NamedAdapters(const std::string& directory);

}  // namespace df

#endif  // DELTAFOLD_FORMAT_VARIANT_KIND_H_
