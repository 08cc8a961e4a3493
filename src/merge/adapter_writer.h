// Adapters on disk, as PEFT reads them: merged ones written, others copied as they are.
#ifndef DELTAFOLD_MERGE_ADAPTER_WRITER_H_
#define DELTAFOLD_MERGE_ADAPTER_WRITER_H_

#include <cstdint>
#include <string>

#include "base/status.h"
#include "format/peft_adapter.h"
#include "merge/adapter_factors.h"

namespace df {

// Of the tensors that `factors` stores in its dtype, or that the adapter's file has; headers not counted.
uint64_t TensorBytes(const AdapterFactors& factors);
uint64_t TensorBytes(const PeftAdapter& adapter);

// Writes adapter_config.json and adapter_model.safetensors into `directory`, which is there. Factors are stored in
// factors.dtype, whose values they have, with a scale of 1 (lora_alpha = r; rank_pattern and alpha_pattern by full
// path). The only errors are kIo.
Status WriteAdapter(const AdapterFactors& factors, const std::string& base_name, const std::string& directory);

// Copies the two files of `adapter`, byte for byte. The only errors are kIo and kCorrupt (changed meanwhile).
Status CopyAdapter(const PeftAdapter& adapter, const std::string& directory);

// Copies the files that belong to a variant's text (format/served_files.h) from one directory to another. The only
// errors are those of AddServedFiles and kIo.
Status CopyServedFiles(const std::string& from, const std::string& to);

// XXH3-128 of those files; "" when there is none.
Result<std::string> DigestOfServedFiles(const std::string& directory);

}  // namespace df

#endif  // DELTAFOLD_MERGE_ADAPTER_WRITER_H_
