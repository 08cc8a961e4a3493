// The parts of an adapter file and its config, laid on the modules of a base.
#ifndef DELTAFOLD_FORMAT_PEFT_BIND_H_
#define DELTAFOLD_FORMAT_PEFT_BIND_H_

#include <map>
#include <string>
#include <vector>

#include "format/peft_adapter.h"
#include "format/peft_config.h"

namespace df {

// PeftAdapter::Bind without the directory. The only errors are kCorrupt (no home, shape, a value that is not finite, a
// part that is missing), kInvalidArgument (a scale or token id out of range) and kUnsupported (DoRA on an embedding).
Result<AdapterChanges> BindAdapterParts(const PeftConfig& config, const std::map<std::string, AdapterParts>& parts,
                                        const std::vector<BaseModule>& modules);

}  // namespace df

#endif  // DELTAFOLD_FORMAT_PEFT_BIND_H_
