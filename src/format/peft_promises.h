// Whether an adapter file stores what its config promises, as far as that shows without a base.
#ifndef DELTAFOLD_FORMAT_PEFT_PROMISES_H_
#define DELTAFOLD_FORMAT_PEFT_PROMISES_H_

#include <map>
#include <string>

#include "base/status.h"
#include "format/peft_config.h"
#include "format/peft_tensors.h"

namespace df {

// use_dora, lora_bias, bias, modules_to_save and trainable_token_indices: what each of them says of the stored modules
// is stored, and nothing that none of them speaks of. The errors are those of BindAdapterParts, which sees more: it
// knows the base. kCorrupt, and kUnsupported for DoRA on an embedding.
Status CheckPromises(const PeftConfig& config, const std::map<std::string, AdapterParts>& parts);

}  // namespace df

#endif  // DELTAFOLD_FORMAT_PEFT_PROMISES_H_
