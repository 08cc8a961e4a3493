// A PEFT LoRA adapter directory: adapter_config.json + adapter_model.safetensors, or exactly one sub-folder with them.
// What changes the computation is honoured or refused naming the field; docs/formats/adapter.md has the table.
// base_model_name_or_path is a label, never opened; pickled weights are refused.
#ifndef DELTAFOLD_FORMAT_PEFT_ADAPTER_H_
#define DELTAFOLD_FORMAT_PEFT_ADAPTER_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "format/base_module.h"
#include "format/peft_tensors.h"
#include "format/safetensors.h"
#include "tensor/linear_delta.h"
#include "tensor/mat.h"

namespace df {

struct PeftConfig;  // format/peft_config.h

// What an adapter makes of one module.
struct ModuleChange {
  // d_out: the variant's rows, which may differ from the base's for embedding and head. The low rank of an embedding is
  // turned to the table's form: a [r, d_model], b [vocab, r]. A norm: d_out 1, `raw` [n].
  LinearDelta weight;
  // lora_bias: [d_out], added to weight.bias or else the base's, times low_rank's scale.
  std::optional<TensorView> added_bias = {};
};

// Whether both do the same, by the same stored values, to the weight that they share: what PEFT stores of an embedding
// and the head tied to it (modules_to_save, ensure_weight_tying).
bool ChangeAlike(const ModuleChange& a, const ModuleChange& b);

// By module path. Views live as long as the adapter and this.
struct AdapterChanges {
  std::map<std::string, ModuleChange> modules;
  std::vector<Buffer<uint8_t>> turned;  // stored values in another order
};

class PeftAdapter {
 public:
  static Result<std::shared_ptr<const PeftAdapter>> Open(const std::string& directory);
  ~PeftAdapter();

  const std::string& directory() const { return directory_; }
  const Json& config_json() const { return json_; }
  const PeftConfig& config() const { return *config_; }
  size_t rank() const { return rank_; }  // the largest stored
  const SafetensorsFile& file() const { return *file_; }

  // What becomes of each changed module. Every stored tensor must have a home among `modules`, with fitting shape and
  // finite values, that the config speaks of; everything that the config promises must be stored; at least one module
  // has low-rank factors. Errors name module, expected and found.
  Result<AdapterChanges> Bind(const std::vector<BaseModule>& modules) const;

  // XXH3-128 of config and tensors: the adapter's content digest.
  Result<std::string> Digest() const;

 private:
  PeftAdapter();

  std::string directory_;
  Json json_;
  std::unique_ptr<const PeftConfig> config_;
  size_t rank_ = 0;
  std::shared_ptr<const SafetensorsFile> file_;
  std::map<std::string, AdapterParts> parts_;  // of file_, by module path
};

}  // namespace df

#endif  // DELTAFOLD_FORMAT_PEFT_ADAPTER_H_
