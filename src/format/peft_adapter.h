// A PEFT LoRA adapter directory: adapter_config.json + adapter_model.safetensors. Honoured: r, lora_alpha, use_rslora,
// rank_pattern, alpha_pattern, list / regular-expression / all-linear targets, layers_to_transform, an adapter in a
// subfolder. Everything else that changes the computation is refused naming the field (pickled weights, DoRA, bias,
// modules_to_save, embedding LoRA, trainable tokens, other peft types ...). base_model_name_or_path is a label, never
// opened.
#ifndef DELTAFOLD_FORMAT_PEFT_ADAPTER_H_
#define DELTAFOLD_FORMAT_PEFT_ADAPTER_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "format/linear_module.h"
#include "format/safetensors.h"
#include "tensor/linear_delta.h"

namespace df {

struct PeftConfig;  // format/peft_config.h

class PeftAdapter {
 public:
  static Result<std::shared_ptr<const PeftAdapter>> Open(const std::string& directory);
  ~PeftAdapter();

  const std::string& directory() const { return directory_; }
  const Json& config_json() const { return json_; }
  size_t rank() const { return rank_; }  // the largest stored
  const SafetensorsFile& file() const { return *file_; }

  // The pair of each changed module, by path. Every stored pair must have a home among `modules` with fitting shapes
  // and rank, and at least one must match; scales are finite. Errors name module, expected and found.
  Result<std::map<std::string, LowRank>> Bind(const std::vector<LinearModule>& modules) const;

  // XXH3-128 of config and tensors: the adapter's content digest.
  Result<std::string> Digest() const;

 private:
  PeftAdapter();

  std::string directory_;
  Json json_;
  std::unique_ptr<const PeftConfig> config_;
  size_t rank_ = 0;
  std::shared_ptr<const SafetensorsFile> file_;
};

}  // namespace df

#endif  // DELTAFOLD_FORMAT_PEFT_ADAPTER_H_
