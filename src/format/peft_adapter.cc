#include "format/peft_adapter.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <unordered_map>

#include "base/presence.h"
#include "format/digest.h"
#include "format/message.h"
#include "format/peft_config.h"

namespace df {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kConfigName = "/adapter_config.json";
constexpr std::string_view kPrefix = "base_model.model.";

// PEFT saves an adapter that is not called "default" into a folder of its name.
Result<std::string> FindAdapterFolder(const std::string& directory) {
  DF_ASSIGN_OR_RETURN(const bool is_here, HasFile(directory + std::string(kConfigName)));
  if (is_here) return directory;
  std::vector<std::string> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    DF_ASSIGN_OR_RETURN(const bool is_inside, HasFile(entry.path().string() + std::string(kConfigName)));
    if (is_inside) found.push_back(entry.path().string());
  }
  if (found.size() == 1) return found.front();
  if (found.empty()) return NotFound("no adapter_config.json in " + directory);
  std::sort(found.begin(), found.end());
  return InvalidArgument(directory + " holds " + std::to_string(found.size()) + " adapters: name one of its folders, " +
                         found.front() + " for example");
}

Status MissingWeights(const std::string& directory) {
  std::error_code error;
  if (fs::exists(directory + "/adapter_model.bin", error)) {
    return Unsupported(directory +
                       " has only pickled weights (adapter_model.bin), which may run code when read: convert "
                       "them to safetensors");
  }
  return NotFound("no adapter_model.safetensors in " + directory);
}

enum class Side { kA, kB };
struct FactorName {
  std::string path;
  Side side;
};

Status RefuseTensor(const std::string& name) {
  struct Known {
    std::string_view part, feature;
  };
  for (const Known& known : {Known{"lora_embedding_", "LoRA on an embedding"}, Known{"lora_magnitude_vector", "DoRA"},
                             Known{"lora_B.bias", "lora_bias"}, Known{"base_layer", "a stored copy of a base layer"},
                             Known{"token_adapter", "trainable tokens"}, Known{"modules_to_save", "modules_to_save"}}) {
    if (name.find(known.part) == std::string::npos) continue;
    return Unsupported("adapter tensor " + Quoted(name) + ": " + std::string(known.feature) + " is not supported");
  }
  return Unsupported("adapter tensor " + Quoted(name) + " is neither lora_A.weight nor lora_B.weight of a module");
}

// base_model.model.PATH.lora_A.weight, or ...lora_A.NAME.weight with the name of the adapter.
Result<FactorName> ParseFactorName(const std::string& name) {
  std::string_view rest = name;
  constexpr std::string_view kEnd = ".weight";
  if (!rest.starts_with(kPrefix) || !rest.ends_with(kEnd)) return RefuseTensor(name);
  rest.remove_prefix(kPrefix.size());
  if (rest.size() < kEnd.size()) return RefuseTensor(name);
  rest.remove_suffix(kEnd.size());
  for (const Side side : {Side::kA, Side::kB}) {
    const std::string_view mark = side == Side::kA ? ".lora_A" : ".lora_B";
    const size_t at = rest.rfind(mark);
    if (at == std::string_view::npos || at == 0) continue;
    const std::string_view adapter = rest.substr(at + mark.size());
    const bool named = adapter.size() > 1 && adapter.front() == '.' && adapter.find('.', 1) == std::string_view::npos;
    if (adapter.empty() || named) return FactorName{std::string(rest.substr(0, at)), side};
  }
  return RefuseTensor(name);
}

struct Pair {
  const TensorView* a = nullptr;
  const TensorView* b = nullptr;
};

Result<std::map<std::string, Pair>> PairFactors(const SafetensorsFile& file) {
  std::map<std::string, Pair> pairs;
  for (const NamedTensor& tensor : file.tensors()) {
    DF_ASSIGN_OR_RETURN(const FactorName factor, ParseFactorName(tensor.name));
    Pair& pair = pairs[factor.path];
    const TensorView*& slot = factor.side == Side::kA ? pair.a : pair.b;
    if (slot != nullptr) return Corrupt("module " + Quoted(factor.path) + " has two factors of one side");
    if (!IsWeightDType(tensor.view.dtype) || tensor.view.shape.rank() != 2) {
      return Corrupt("adapter tensor " + Quoted(tensor.name) + " must be F32, BF16 or F16 of rank 2, found " +
                     std::string(DTypeName(tensor.view.dtype)) + " " + ToString(tensor.view.shape));
    }
    slot = &tensor.view;
  }
  for (const auto& [path, pair] : pairs) {
    if (pair.a != nullptr && pair.b != nullptr) continue;
    return Corrupt("module " + Quoted(path) + " has lora_" +
                   (pair.a != nullptr ? "A but no lora_B" : "B but no lora_A"));
  }
  if (pairs.empty()) return Corrupt("the adapter stores no LoRA factors");
  return pairs;
}

Status CheckPair(const std::string& path, const Pair& pair, const LinearModule& module, size_t rank) {
  const Shape a{rank, module.d_in}, b{module.d_out, rank};
  if (pair.a->shape != a) {
    return Corrupt("lora_A of module " + Quoted(path) + " has shape " + ToString(pair.a->shape) + ", expected " +
                   ToString(a) + " (rank, d_in)");
  }
  if (pair.b->shape == b) return Status::Ok();
  return Corrupt("lora_B of module " + Quoted(path) + " has shape " + ToString(pair.b->shape) + ", expected " +
                 ToString(b) + " (d_out, rank)");
}

}  // namespace

PeftAdapter::PeftAdapter() = default;
PeftAdapter::~PeftAdapter() = default;

Result<std::shared_ptr<const PeftAdapter>> PeftAdapter::Open(const std::string& directory) {
  DF_ASSIGN_OR_RETURN(const std::string folder, FindAdapterFolder(directory));
  std::shared_ptr<PeftAdapter> adapter(new PeftAdapter);
  adapter->directory_ = folder;
  const std::string config_path = folder + std::string(kConfigName);
  DF_ASSIGN_OR_RETURN(adapter->json_, ReadJsonFile(config_path));
  Result<PeftConfig> config = ParsePeftConfig(adapter->json_);
  if (!config.ok()) return config.status().Annotate(config_path);
  adapter->config_ = std::make_unique<const PeftConfig>(*std::move(config));

  const std::string weights = folder + "/adapter_model.safetensors";
  DF_ASSIGN_OR_RETURN(const bool has_weights, HasFile(weights));
  if (!has_weights) return MissingWeights(folder);
  DF_ASSIGN_OR_RETURN(adapter->file_, SafetensorsFile::Open(weights));
  const auto pairs = PairFactors(*adapter->file_);
  if (!pairs.ok()) return pairs.status().Annotate(weights);
  for (const auto& [path, pair] : *pairs) adapter->rank_ = std::max(adapter->rank_, pair.a->shape[0]);
  return std::shared_ptr<const PeftAdapter>(std::move(adapter));
}

Result<std::map<std::string, LowRank>> PeftAdapter::Bind(const std::vector<LinearModule>& modules) const {
  std::unordered_map<std::string_view, const LinearModule*> by_path;
  for (const LinearModule& module : modules) by_path.emplace(module.path, &module);
  DF_ASSIGN_OR_RETURN(const auto pairs, PairFactors(*file_));
  std::map<std::string, LowRank> bound;
  for (const auto& [path, pair] : pairs) {
    const auto module = by_path.find(path);
    if (module == by_path.end()) {
      return Corrupt(directory_ + " changes module " + Quoted(path) +
                     ", which is no linear layer of the base that an adapter may change");
    }
    if (!config_->Targets(path)) {
      return Corrupt(directory_ + " stores factors of module " + Quoted(path) +
                     ", which its own target_modules leave out");
    }
    const Status fits = CheckPair(path, pair, *module->second, config_->RankOf(path));
    if (!fits.ok()) return fits.Annotate(directory_);
    const auto scale = static_cast<float>(config_->ScaleOf(path));
    if (!std::isfinite(scale))
      return InvalidArgument(directory_ + ": the scale of module " + Quoted(path) + " is not finite");
    bound.emplace(path, LowRank{.a = *pair.a, .b = *pair.b, .scale = scale});
  }
  return bound;
}

Result<std::string> PeftAdapter::Digest() const {
  df::Digest digest;
  digest.AddText(DumpJson(json_));
  std::vector<const NamedTensor*> tensors;
  for (const NamedTensor& tensor : file_->tensors()) tensors.push_back(&tensor);
  std::sort(tensors.begin(), tensors.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
  for (const NamedTensor* tensor : tensors) digest.AddTensor(tensor->name, tensor->view, &file_->file());
  DF_RETURN_IF_ERROR(file_->file().CheckIntact());
  return digest.Hex();
}

}  // namespace df
