#include "format/peft_tensors.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "format/message.h"

namespace df {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";

// PATH + mark [+ "." + the adapter's name] + end.
struct PartName {
  AdapterPart part;
  std::string_view mark, end;
  bool may_name_adapter = true;
};
// The first that fits counts: PATH + ".weight" would take everything.
constexpr PartName kPartNames[] = {
    {AdapterPart::kA, ".lora_A", ".weight"},
    {AdapterPart::kB, ".lora_B", ".weight"},
    {AdapterPart::kBBias, ".lora_B", ".bias"},
    {AdapterPart::kEmbeddingA, ".lora_embedding_A", ""},
    {AdapterPart::kEmbeddingB, ".lora_embedding_B", ""},
    {AdapterPart::kMagnitude, ".lora_magnitude_vector", ".weight"},
    {AdapterPart::kMagnitude, ".lora_magnitude_vector", ""},
    {AdapterPart::kTokens, ".token_adapter.trainable_tokens_delta", ""},
    {AdapterPart::kWeight, ".base_layer.weight", "", false},
    {AdapterPart::kBias, ".base_layer.bias", "", false},
    {AdapterPart::kWeight, ".weight", "", false},
    {AdapterPart::kBias, ".bias", "", false},
};

// Parts of names that belong to no module, or to what is not served.
constexpr std::string_view kForeignParts[] = {"lora_", "token_adapter", "base_layer", "modules_to_save",
                                              "original_module"};

bool IsNameOfAdapter(std::string_view text) {
  return text.empty() || (text.size() > 1 && text.front() == '.' && text.find('.', 1) == std::string_view::npos);
}

// The module's path, or empty when `rest` is not of this form.
std::string_view PathOf(std::string_view rest, const PartName& form) {
  const size_t at = rest.rfind(form.mark);
  if (at == std::string_view::npos) return {};
  std::string_view after = rest.substr(at + form.mark.size());
  if (!after.ends_with(form.end)) return {};
  after.remove_suffix(form.end.size());
  if (!(form.may_name_adapter ? IsNameOfAdapter(after) : after.empty())) return {};
  const std::string_view path = rest.substr(0, at);
  const auto is_in_path = [path](std::string_view part) { return path.find(part) != std::string_view::npos; };
  return std::ranges::any_of(kForeignParts, is_in_path) ? std::string_view() : path;
}

struct PlacedTensor {
  std::string_view path;
  AdapterPart part;
};

Result<PlacedTensor> Place(const std::string& name) {
  std::string_view rest = name;
  if (rest.starts_with(kPrefix)) {
    rest.remove_prefix(kPrefix.size());
    for (const PartName& form : kPartNames) {
      const std::string_view path = PathOf(rest, form);
      if (!path.empty()) return PlacedTensor{path, form.part};
    }
  }
  return Unsupported("adapter tensor " + Quoted(name) +
                     " is of no known form (docs/formats/adapter.md lists them): what it changes is not known");
}

size_t RankOf(AdapterPart part, const NamedTensor& tensor) {
  switch (part) {
    case AdapterPart::kBBias:
    case AdapterPart::kMagnitude:
    case AdapterPart::kBias: return 1;
    case AdapterPart::kWeight: return tensor.view.shape.rank() == 1 ? 1 : 2;  // of a norm, or a matrix
    default: return 2;
  }
}

Status CheckPairs(const std::map<std::string, AdapterParts>& modules) {
  bool has_factors = false;
  for (const auto& [path, parts] : modules) {
    has_factors = has_factors || parts.HasFactors();
    for (const auto& [a, b, kind] :
         {std::tuple{AdapterPart::kA, AdapterPart::kB, "lora_"},
          std::tuple{AdapterPart::kEmbeddingA, AdapterPart::kEmbeddingB, "lora_embedding_"}}) {
      if ((parts.OrNull(a) != nullptr) == (parts.OrNull(b) != nullptr)) continue;
      const bool has_a = parts.OrNull(a) != nullptr;
      return Corrupt("module " + Quoted(path) + " has " + kind + (has_a ? "A but no " : "B but no ") + kind +
                     (has_a ? "B" : "A"));
    }
  }
  return has_factors ? Status::Ok() : Corrupt("the adapter stores no LoRA factors");
}

}  // namespace

bool AdapterParts::HasFactors() const {
  return OrNull(AdapterPart::kA) != nullptr || OrNull(AdapterPart::kB) != nullptr ||
         OrNull(AdapterPart::kEmbeddingA) != nullptr || OrNull(AdapterPart::kEmbeddingB) != nullptr;
}

Result<std::map<std::string, AdapterParts>> ListAdapterParts(const SafetensorsFile& file) {
  std::map<std::string, AdapterParts> modules;
  for (const NamedTensor& tensor : file.tensors()) {
    DF_ASSIGN_OR_RETURN(const PlacedTensor placed, Place(tensor.name));
    const NamedTensor*& slot = modules[std::string(placed.path)].tensors[static_cast<size_t>(placed.part)];
    if (slot != nullptr) {
      return Corrupt("adapter tensors " + Quoted(slot->name) + " and " + Quoted(tensor.name) + " are the same part");
    }
    const size_t rank = RankOf(placed.part, tensor);
    if (!IsWeightDType(tensor.view.dtype) || tensor.view.shape.rank() != rank) {
      return Corrupt("adapter tensor " + Quoted(tensor.name) + " must be F32, BF16 or F16 of rank " +
                     std::to_string(rank) + ", found " + std::string(DTypeName(tensor.view.dtype)) + " " +
                     ToString(tensor.view.shape));
    }
    slot = &tensor;
  }
  DF_RETURN_IF_ERROR(CheckPairs(modules));
  return modules;
}

}  // namespace df
