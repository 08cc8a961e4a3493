// Whether an adapter file stores what its config promises, as far as that shows without a base.
#ifndef DELTAFOLD_FORMAT_PEFT_PROMISES_H_
#define DELTAFOLD_FORMAT_PEFT_PROMISES_H_

#include <map>
#include <string>

#include "base/status.h"
#include "format/peft_config.h"
#include "format/peft_tensors.h"

namespace df {

// What use_dora, lora_bias and bias say of one module and what is stored of it agree. kCorrupt naming the field, and
// kUnsupported for DoRA on an embedding.
Status CheckModulePromises(const PeftConfig& config, const std::string& path, const AdapterParts& parts);

// The same of all modules, and what modules_to_save and trainable_token_indices name is stored: kCorrupt. Whether the
// base has what they name only BindAdapterParts sees.
Status CheckPromises(const PeftConfig& config, const std::map<std::string, AdapterParts>& parts);

}  // namespace df

#endif  // DELTAFOLD_FORMAT_PEFT_PROMISES_H_
