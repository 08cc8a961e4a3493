#include "codec/inspect.h"

#include <algorithm>
#include <filesystem>

#include "base/presence.h"
#include "codec/bound_variant.h"
#include "codec/codec.h"
#include "format/peft_config.h"
#include "format/shards.h"
#include "format/variant_kind.h"
#include "text/model_text.h"

namespace df {
namespace {

namespace fs = std::filesystem;

void AddFact(Inspection& inspection, std::string name, std::string value) {
  inspection.facts.emplace_back(std::move(name), std::move(value));
}

void AddTensor(Inspection& inspection, InspectedTensor tensor) {
  inspection.bytes += tensor.bytes;
  inspection.tensors.push_back(std::move(tensor));
}

void AddStored(Inspection& inspection, const std::string& name, const TensorView& view) {
  AddTensor(inspection, {name, std::string(DTypeName(view.dtype)), view.shape, view.bytes.size()});
}

std::string RopeName(const RopeConfig& rope) {
  std::string name;
  switch (rope.kind) {
    case RopeConfig::Kind::kDefault: name = "default"; break;
    case RopeConfig::Kind::kLinear: name = "linear"; break;
    case RopeConfig::Kind::kLlama3: name = "llama3"; break;
    case RopeConfig::Kind::kYarn: name = "yarn"; break;
    case RopeConfig::Kind::kDynamic: name = "dynamic"; break;
  }
  name += ", theta " + std::to_string(static_cast<int64_t>(rope.theta));
  return rope.factor == 1.0 ? name : name + ", factor " + DumpJson(Json(rope.factor));
}

void AddConfigFacts(Inspection& inspection, const ModelConfig& config) {
  AddFact(inspection, "architecture", config.model_type);
  AddFact(inspection, "layers", std::to_string(config.n_layers));
  AddFact(inspection, "d_model, d_ff", std::to_string(config.d_model) + ", " + std::to_string(config.d_ff));
  AddFact(inspection, "heads",
          std::to_string(config.n_heads) + " query, " + std::to_string(config.n_kv_heads) + " key/value, " +
              std::to_string(config.head_dim) + " wide");
  AddFact(inspection, "vocabulary", std::to_string(config.vocab));
  AddFact(inspection, "positions", std::to_string(config.max_positions));
  AddFact(inspection, "rope", RopeName(config.rope));
  const auto window = std::ranges::max_element(config.window);
  if (window != config.window.end() && *window > 0) AddFact(inspection, "sliding window", std::to_string(*window));
}

void AddTokenizerFacts(Inspection& inspection, const Tokenizer& tokenizer) {
  AddFact(
      inspection, "tokenizer",
      std::to_string(tokenizer.vocab()) + " ids, " + std::to_string(tokenizer.added_tokens().size()) + " added tokens");
}

// Tokenizer, chat template and special ids of a model or variant; `base` may be null.
Status InspectText(Inspection& inspection, const std::string& directory, const Checkpoint* base) {
  DF_ASSIGN_OR_RETURN(const bool own, HasFile(directory + "/tokenizer.json"));
  bool of_base = false;
  if (base != nullptr) {
    DF_ASSIGN_OR_RETURN(of_base, HasFile(base->directory() + "/tokenizer.json"));
  }
  if (!own && !of_base) {
    AddFact(inspection, "tokenizer", "none here");
    return Status::Ok();
  }
  std::optional<ModelText> base_text;
  if (of_base) {
    DF_ASSIGN_OR_RETURN(base_text, LoadModelText(base->directory()));
  }
  DF_ASSIGN_OR_RETURN(const ModelText text, LoadModelText(directory, base_text ? &*base_text : nullptr));
  AddTokenizerFacts(inspection, *text.tokenizer);
  AddFact(inspection, "chat template", text.chat_template == nullptr ? "none" : "compiles");
  return Status::Ok();
}

Status InspectSafetensors(Inspection& inspection, const std::string& path) {
  inspection.kind = "safetensors file";
  DF_ASSIGN_OR_RETURN(const auto file, SafetensorsFile::Open(path));
  for (const auto& [key, value] : file->metadata()) AddFact(inspection, key, value);
  for (const NamedTensor& tensor : file->tensors()) AddStored(inspection, tensor.name, tensor.view);
  return Status::Ok();
}

Status InspectIndex(Inspection& inspection, const std::string& path) {
  inspection.kind = "safetensors index";
  const fs::path parent = fs::path(path).parent_path();
  DF_ASSIGN_OR_RETURN(const auto shards, OpenShards(parent.empty() ? "." : parent.string(), path));
  AddFact(inspection, "shards", std::to_string(shards.size()));
  for (const auto& shard : shards) {
    for (const NamedTensor& tensor : shard->tensors()) AddStored(inspection, tensor.name, tensor.view);
  }
  return Status::Ok();
}

Status InspectTokenizer(Inspection& inspection, const std::string& path) {
  inspection.kind = "tokenizer";
  DF_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(path));
  AddTokenizerFacts(inspection, *tokenizer);
  return Status::Ok();
}

Status InspectConfig(Inspection& inspection, const std::string& path) {
  inspection.kind = "config";
  DF_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  DF_ASSIGN_OR_RETURN(const ModelConfig config, ParseModelConfig(json));
  AddConfigFacts(inspection, config);
  return Status::Ok();
}

Status InspectModel(Inspection& inspection, const std::string& directory) {
  inspection.kind = "model";
  DF_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(directory));
  AddConfigFacts(inspection, checkpoint->config());
  for (const std::string& name : checkpoint->names()) {
    AddStored(inspection, name, checkpoint->FindOrNull(name)->view);
  }
  DF_ASSIGN_OR_RETURN(const BoundCheckpoint bound, Bind(*checkpoint));
  AddFact(inspection, "head", bound.tied ? "tied to the embedding" : "its own");
  DF_RETURN_IF_ERROR(InspectText(inspection, directory, nullptr));
  DF_ASSIGN_OR_RETURN(const bool has_tokenizer, HasFile(directory + "/tokenizer.json"));
  if (!has_tokenizer) {
    inspection.lack =
        FailedPrecondition(directory + " has no tokenizer.json: it can be compressed against, not served");
  }
  DF_ASSIGN_OR_RETURN(const GenerationDefaults defaults, LoadGenerationDefaults(directory));
  return Status::Ok();
}

uint64_t Elements(const Slot& slot) { return uint64_t{slot.d_out} * slot.d_in; }

void AddWeight(Inspection& inspection, const Slot& slot, const LinearDelta& change, size_t full_element_bytes) {
  const Shape shape = slot.IsVector() ? Shape{slot.d_out} : Shape{slot.d_out, slot.d_in};
  AddTensor(inspection, {slot.name, CodeName(change), shape, StoredBytes(change)});
  inspection.full_bytes = inspection.full_bytes.value_or(0) + Elements(slot) * full_element_bytes;
}

Status InspectBound(Inspection& inspection, const std::string& directory, const Checkpoint& base) {
  DF_ASSIGN_OR_RETURN(const BoundVariant variant, BindVariant(base, directory));
  for (const BoundWeight& weight : variant.weights) {
    AddWeight(inspection, weight.slot, weight.change, DTypeBytes(weight.base->view.dtype));
  }
  AddFact(inspection, "base", "fits");
  return InspectText(inspection, directory, &base);
}

Status InspectDelta(Inspection& inspection, const std::string& directory, const Checkpoint* base) {
  inspection.kind = "delta";
  DF_ASSIGN_OR_RETURN(const auto delta, DeltaDirectory::Open(directory));
  AddConfigFacts(inspection, delta->config());
  AddFact(inspection, "base fingerprint", delta->metadata().base_fingerprint);
  AddFact(inspection, "content digest", delta->metadata().content_digest);
  const Json* base_name = JsonMemberOrNull(delta->delta_config(), "base_model_name_or_path");
  if (base_name != nullptr && base_name->is_string()) AddFact(inspection, "base name", base_name->get<std::string>());
  DF_RETURN_IF_ERROR(delta->VerifyDigest());
  if (base != nullptr) return InspectBound(inspection, directory, *base);
  const std::vector<Slot> slots = SlotsOfDelta(*delta);
  DF_RETURN_IF_ERROR(CheckAllPlaced(*delta, slots));
  const size_t element_bytes = DTypeBytes(delta->config().dtype.value_or(DType::kBf16));
  for (const Slot& slot : slots) {
    DF_ASSIGN_OR_RETURN(const LinearDelta change, ChangeOf(*delta, slot, slot.d_out));
    AddWeight(inspection, slot, change, element_bytes);
  }
  return InspectText(inspection, directory, nullptr);
}

// "LoRA", "DoRA, scale alpha / sqrt(r)"
std::string MethodName(const PeftConfig& config) {
  std::string name = config.dora ? "DoRA" : "LoRA";
  if (config.rslora) name += ", scale alpha / sqrt(r)";
  if (config.lora_bias) name += ", with a bias";
  return name;
}

void AddAdapterFacts(Inspection& inspection, const PeftAdapter& adapter) {
  const PeftConfig& config = adapter.config();
  AddFact(inspection, "method", MethodName(config));
  AddFact(inspection, "rank", std::to_string(adapter.rank()));
  if (config.bias != AdapterBias::kNone) {
    AddFact(inspection, "biases", config.bias == AdapterBias::kAll ? "all" : "of its modules");
  }
  std::string saved;
  for (const std::string& name : config.modules_to_save) saved += (saved.empty() ? "" : ", ") + name;
  if (!saved.empty()) AddFact(inspection, "saved modules", saved);
  for (const TrainableTokens& tokens : config.trainable_tokens) {
    AddFact(inspection, "token rows of " + tokens.module, std::to_string(tokens.index.size()));
  }
}

Status InspectAdapter(Inspection& inspection, const std::string& directory, const Checkpoint* base) {
  inspection.kind = "adapter";
  DF_ASSIGN_OR_RETURN(const auto adapter, PeftAdapter::Open(directory));
  AddAdapterFacts(inspection, *adapter);
  if (base != nullptr) return InspectBound(inspection, directory, *base);
  AddFact(inspection, "base", "not given: whether it fits one is open");
  for (const NamedTensor& tensor : adapter->file().tensors()) AddStored(inspection, tensor.name, tensor.view);
  return Status::Ok();
}

Status InspectDirectory(Inspection& inspection, const std::string& directory, const Checkpoint* base) {
  DF_ASSIGN_OR_RETURN(const DirectoryKind kind, KindOfDirectory(directory));
  switch (kind) {
    case DirectoryKind::kDelta: return InspectDelta(inspection, directory, base);
    case DirectoryKind::kAdapter: return InspectAdapter(inspection, directory, base);
    case DirectoryKind::kModel:
    case DirectoryKind::kNothing: break;  // the checkpoint's reader tells what is missing
  }
  return InspectModel(inspection, directory);
}

Status InspectFile(Inspection& inspection, const std::string& path) {
  const std::string name = fs::path(path).filename().string();
  if (name.ends_with(".index.json")) return InspectIndex(inspection, path);
  if (name == "config.json") return InspectConfig(inspection, path);
  if (name.ends_with(".json")) return InspectTokenizer(inspection, path);
  return InspectSafetensors(inspection, path);
}

}  // namespace

Inspection Inspect(const std::string& path, const Checkpoint* base) {
  Inspection inspection;
  std::error_code error;
  if (path.find('\0') != std::string::npos) {
    inspection.problem = NotFound("no file or directory " + path);
  } else if (!fs::exists(path, error)) {
    inspection.problem = AbsenceOf(path);
  } else if (fs::is_directory(path, error)) {
    inspection.problem = InspectDirectory(inspection, path, base);
  } else {
    inspection.problem = InspectFile(inspection, path);
  }
  return inspection;
}

}  // namespace df
