#include "format/peft_adapter.h"

#include <algorithm>
#include <filesystem>

#include "base/presence.h"
#include "format/digest.h"
#include "format/peft_bind.h"
#include "format/peft_config.h"
#include "format/variant_kind.h"

namespace df {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kConfigName = "/adapter_config.json";

Result<std::string> FindAdapterFolder(const std::string& directory) {
  DF_ASSIGN_OR_RETURN(const bool is_here, HasFile(directory + std::string(kConfigName)));
  if (is_here) return directory;
  DF_ASSIGN_OR_RETURN(const std::vector<std::string> found, NamedAdapters(directory));
  if (found.size() == 1) return found.front();
  if (found.empty()) return NotFound("no adapter_config.json in " + directory);
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

bool AreSame(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.shape == b.shape && std::ranges::equal(a.bytes, b.bytes);
}

bool AreSame(const LowRank& a, const LowRank& b) {
  return a.scale == b.scale && AreSame(a.a, b.a) && AreSame(a.b, b.b);
}

bool AreSame(const ReplacedRows& a, const ReplacedRows& b) { return a.index == b.index && AreSame(a.values, b.values); }

template <typename T>
bool AreSame(const std::optional<T>& a, const std::optional<T>& b) {
  return a.has_value() == b.has_value() && (!a || AreSame(*a, *b));
}

}  // namespace

bool ChangeAlike(const ModuleChange& a, const ModuleChange& b) {
  const LinearDelta &left = a.weight, &right = b.weight;
  return AreSame(left.raw, right.raw) && AreSame(left.rows, right.rows) && AreSame(left.magnitude, right.magnitude) &&
         AreSame(left.bias, right.bias) && AreSame(a.added_bias, b.added_bias) &&
         std::ranges::equal(left.low_rank, right.low_rank,
                            [](const LowRank& x, const LowRank& y) { return AreSame(x, y); });
}

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
  auto parts = ListAdapterParts(*adapter->file_);
  if (!parts.ok()) return parts.status().Annotate(weights);
  adapter->parts_ = *std::move(parts);
  for (const auto& [path, module] : adapter->parts_) {
    for (const AdapterPart part : {AdapterPart::kA, AdapterPart::kEmbeddingA}) {
      if (const TensorView* a = module.ViewOrNull(part)) adapter->rank_ = std::max(adapter->rank_, a->shape[0]);
    }
  }
  return std::shared_ptr<const PeftAdapter>(std::move(adapter));
}

Result<AdapterChanges> PeftAdapter::Bind(const std::vector<BaseModule>& modules) const {
  Result<AdapterChanges> changes = BindAdapterParts(*config_, parts_, modules);
  if (!changes.ok()) return changes.status().Annotate(directory_);
  return changes;
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
