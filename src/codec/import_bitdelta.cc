#include "codec/import_bitdelta.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/atomic_file.h"
#include "base/json.h"
#include "codec/exact.h"
#include "codec/model_card.h"
#include "codec/side_files.h"
#include "format/delta_dir.h"
#include "format/message.h"
#include "format/torch_pickle.h"
#include "model/bind.h"
#include "tensor/mat.h"

namespace df {
namespace {

constexpr std::string_view kMask = ".mask", kCoefficient = ".coeff", kWeight = ".weight";
constexpr size_t kWordBits = 32;

// The tensors of a file, and what they lie in.
struct SourceFile {
  std::unique_ptr<MappedFile> torch;
  std::shared_ptr<const SafetensorsFile> safetensors;
  std::map<std::string, StridedTensor> tensors;

  const MappedFile& file() const { return torch != nullptr ? *torch : safetensors->file(); }
  const StridedTensor* FindOrNull(const std::string& name) const {
    const auto found = tensors.find(name);
    return found == tensors.end() ? nullptr : &found->second;
  }
};

StridedTensor Strided(const NamedTensor& tensor) {
  StridedTensor strided{
      .name = tensor.name, .dtype = tensor.view.dtype, .shape = tensor.view.shape, .data = tensor.view.bytes};
  uint64_t step = 1;
  for (size_t i = strided.shape.rank(); i-- > 0;) {
    strided.strides[i] = step;
    step *= strided.shape[i];
  }
  return strided;
}

// By what the file is, not by its name.
Result<SourceFile> OpenSource(const std::string& path) {
  SourceFile source;
  DF_ASSIGN_OR_RETURN(source.torch, MappedFile::Open(path));
  std::vector<StridedTensor> tensors;
  const std::string_view text = AsText(source.torch->bytes());
  if (text.starts_with("PK\x03\x04")) {
    Result<std::vector<StridedTensor>> read = ParseTorchFile(source.torch->bytes());
    if (!read.ok()) return read.status().Annotate(path);
    tensors = std::move(*read);
  } else if (text.starts_with("\x80\x02\x8a\x0a")) {
    return Unsupported(path + " is a bare pickle, as torch before 1.6 wrote them; load and save it with a newer one");
  } else {
    source.torch.reset();
    DF_ASSIGN_OR_RETURN(source.safetensors, SafetensorsFile::Open(path));
    for (const NamedTensor& tensor : source.safetensors->tensors()) tensors.push_back(Strided(tensor));
  }
  for (StridedTensor& tensor : tensors) source.tensors.emplace(tensor.name, tensor);
  return source;
}

std::string ModuleOfMask(const std::string& name) { return name.substr(0, name.size() - kMask.size()); }

// The config of the fine-tune: as given, or the base's with the vocabulary of the file.
struct VariantConfig {
  ModelConfig config;
  std::string patched;  // config.json; empty: as it stands in the directory
};
Result<VariantConfig> ConfigOf(const Checkpoint& base, const SourceFile& source, const ImportOptions& options) {
  VariantConfig variant;
  if (!options.config_directory.empty()) {
    DF_ASSIGN_OR_RETURN(variant.config, LoadModelConfig(options.config_directory));
    return variant;
  }
  variant.config = base.config();
  const StridedTensor* const embedding = source.FindOrNull(kEmbeddingName);
  if (embedding == nullptr || embedding->shape.rank() != 2 || embedding->shape[0] == base.config().vocab)
    return variant;
  DF_ASSIGN_OR_RETURN(Json json, ReadJsonFile(base.directory() + "/config.json"));
  json["vocab_size"] = embedding->shape[0];
  variant.patched = DumpJson(json, 2) + "\n";
  DF_ASSIGN_OR_RETURN(variant.config, ParseModelConfig(json));
  return variant;
}

class Importer {
 public:
  Importer(ThreadPool& pool, const Checkpoint& base, const BoundCheckpoint& bound, const SourceFile& source,
           const ModelConfig& config, DeltaWriter& writer, ImportReport& report)
      : pool_(pool), base_(base), bound_(bound), source_(source), writer_(writer), report_(report) {
    reads_as_tied_ = VariantIsTied({bound.tied, &base.config()}, config, false);
    for (Slot& slot : ListSlots(config, false)) slots_.emplace(slot.name, std::move(slot));
  }

  Status All() {
    for (const auto& [name, tensor] : source_.tensors) {
      Status status;
      if (name.ends_with(kMask)) {
        status = AddSigns(ModuleOfMask(name), tensor);
      } else if (name.ends_with(kCoefficient)) {
        const std::string module = name.substr(0, name.size() - kCoefficient.size());
        if (source_.FindOrNull(module + std::string(kMask)) == nullptr) return Corrupt(name + " has no mask");
      } else {
        status = AddFull(name, tensor);
      }
      DF_RETURN_IF_ERROR(status);
      source_.file().DropPages(tensor.data);
    }
    return Status::Ok();
  }

 private:
  const Slot* FindSlot(const std::string& name) const {
    const auto found = slots_.find(name);
    return found == slots_.end() ? nullptr : &found->second;
  }
  const StoredTensor* BaseOf(const Slot& slot) const {
    return base_.FindOrNull(bound_.tied && slot.kind == SlotKind::kHead ? kEmbeddingName : slot.name);
  }

  Status AddSigns(const std::string& module, const StridedTensor& mask) {
    const std::string name = module + std::string(kWeight);
    const Slot* const slot = FindSlot(name);
    if (slot == nullptr || slot->kind != SlotKind::kMatrix) {
      return Unsupported("the file has a mask of " + Quoted(module) + ", which is no projection of this model");
    }
    const Shape expected{slot->d_in / kWordBits, slot->d_out};
    if (mask.dtype != DType::kI32 || slot->d_in % kWordBits != 0 || mask.shape != expected) {
      return Corrupt("the mask of " + Quoted(module) + " is " + std::string(DTypeName(mask.dtype)) + " " +
                     ToString(mask.shape) + ", expected I32 " + ToString(expected) + " for [" +
                     std::to_string(slot->d_out) + ", " + std::to_string(slot->d_in) + "]");
    }
    LinearDelta delta;
    delta.d_out = slot->d_out;
    delta.d_in = slot->d_in;
    SignPlane plane;
    DF_ASSIGN_OR_RETURN(plane.scale, CoefficientOf(module));
    // Turned, its words are the canonical bytes: column 32 w + i is bit i of word w, little endian.
    StridedTensor turned = mask;
    turned.shape = Shape{mask.shape[1], mask.shape[0]};
    std::swap(turned.strides[0], turned.strides[1]);
    Buffer<uint8_t> memory(slot->d_out * SignRowBytes(slot->d_in));
    plane.bits = turned.View({memory.data(), memory.size()}).bytes;
    delta.planes.push_back(std::move(plane));
    DF_RETURN_IF_ERROR(writer_.AddLinear(name, delta));
    ++report_.n_signs;
    report_.delta_bytes += StoredBytes(delta);
    return Status::Ok();
  }

  Result<float> CoefficientOf(const std::string& module) const {
    const StridedTensor* const stored = source_.FindOrNull(module + std::string(kCoefficient));
    if (stored == nullptr)
      return Corrupt("the mask of " + Quoted(module) + " has no coefficient " + Quoted(module + ".coeff"));
    if (!IsWeightDType(stored->dtype) || stored->shape.TryElements() != 1) {
      return Corrupt("the coefficient of " + Quoted(module) + " is " + std::string(DTypeName(stored->dtype)) + " " +
                     ToString(stored->shape) + ", expected one float");
    }
    const float value = FloatAt(stored->View({}), 0);
    if (std::isfinite(value)) return value;
    return Corrupt("the coefficient of " + Quoted(module) + " is not finite");
  }

  Status AddFull(const std::string& name, const StridedTensor& tensor) {
    const Slot* const slot = FindSlot(name);
    if (slot == nullptr) {
      return Unsupported("the file has an entry " + Quoted(name) + ", which is no mask, no coefficient and no " +
                         "parameter of this model");
    }
    const Shape expected = slot->IsVector() ? Shape{slot->d_out} : Shape{slot->d_out, slot->d_in};
    if (!IsWeightDType(tensor.dtype) || tensor.shape != expected) {
      return Corrupt("parameter " + Quoted(name) + " is " + std::string(DTypeName(tensor.dtype)) + " " +
                     ToString(tensor.shape) + ", expected BF16, F16 or F32 " + ToString(expected));
    }
    const StoredTensor* const base = BaseOf(*slot);
    if (base == nullptr) return Corrupt("the base has no tensor " + name);
    if (source_.FindOrNull(name.substr(0, name.rfind('.')) + std::string(kMask)) != nullptr) {
      return Corrupt("the file has both a mask and a full " + Quoted(name));
    }
    Buffer<uint8_t> memory(tensor.IsContiguous() ? 0 : *tensor.shape.TryElements() * DTypeBytes(tensor.dtype));
    const WeightPair pair{name, base->view, tensor.View({memory.data(), memory.size()})};
    DF_ASSIGN_OR_RETURN(EncodedWeight encoded, EncodeExact(pool_, pair, ExactCode::kSmallest));
    if (encoded.delta.IsBase() && slot->kind == SlotKind::kHead && reads_as_tied_) encoded.delta.raw = pair.fine_tune;
    base->file->DropPages(base->view.bytes);
    report_.delta_bytes += StoredBytes(encoded.delta);
    ++(encoded.delta.IsBase() ? report_.n_unchanged : report_.n_full);
    if (encoded.delta.IsBase()) return Status::Ok();
    if (!slot->IsVector()) return writer_.AddLinear(name, encoded.delta);
    return writer_.Add(name, pair.fine_tune.dtype, pair.fine_tune.shape, pair.fine_tune.bytes);
  }

  ThreadPool& pool_;
  const Checkpoint& base_;
  const BoundCheckpoint& bound_;
  const SourceFile& source_;
  DeltaWriter& writer_;
  ImportReport& report_;
  bool reads_as_tied_ = false;
  std::map<std::string, Slot> slots_;
};

std::string ImportCard(const ImportReport& report, const ImportOptions& options) {
  return CardHead(options.base_name) + "# Delta imported from " + DumpJson(Json(options.source_name)) +
         "\n\n"
         "A BitDelta file in the format of deltafold, bit for bit: signs with one scale a matrix, other parameters as "
         "they were.\n\n"
         "| | |\n|---|---|\n"
         "| recipe | BitDelta (scalar) |\n"
         "| bytes | " +
         std::to_string(report.delta_bytes) + " |\n| matrices of signs | " + std::to_string(report.n_signs) +
         " |\n| other parameters | " + std::to_string(report.n_full) + ", " + std::to_string(report.n_unchanged) +
         " unchanged and not stored |\n| base fingerprint | " + report.base_fingerprint +
         " (the file does not name its base: this is the one it was imported with) |\n";
}

Status WriteSideFiles(const Checkpoint& base, const VariantConfig& variant, const ImportOptions& options,
                      DeltaWriter& writer) {
  if (!variant.patched.empty()) return writer.AddFile("config.json", variant.patched);
  const std::string& from = options.config_directory.empty() ? base.directory() : options.config_directory;
  return CopyChangedFiles(base.directory(), from, writer).status();
}

}  // namespace

Result<ImportReport> ImportBitDelta(ThreadPool& pool, const Checkpoint& base, const std::string& path,
                                    const std::string& directory, const ImportOptions& options) {
  Result<BoundCheckpoint> bound = Bind(base);
  if (!bound.ok()) return bound.status().Annotate("base");
  DF_ASSIGN_OR_RETURN(const SourceFile source, OpenSource(path));
  DF_ASSIGN_OR_RETURN(const VariantConfig variant, ConfigOf(base, source, options));
  DF_RETURN_IF_ERROR(CheckVariantConfig(base.config(), variant.config));
  ImportReport report;
  report.file_bytes = source.file().bytes().size();
  DF_ASSIGN_OR_RETURN(report.base_fingerprint, BaseFingerprint(base, *bound));
  std::vector<std::string> inputs = {base.directory()};
  if (!options.config_directory.empty()) inputs.push_back(options.config_directory);
  DF_ASSIGN_OR_RETURN(const std::unique_ptr<DeltaWriter> writer,
                      DeltaWriter::Create(directory, {.base_fingerprint = report.base_fingerprint,
                                                      .base_name = options.base_name,
                                                      .replace = options.replace,
                                                      .inputs = inputs}));
  Importer importer(pool, base, *bound, source, variant.config, *writer, report);
  DF_RETURN_IF_ERROR(importer.All());
  if (report.n_signs == 0) return Corrupt(path + " has no masks: it is no BitDelta file");
  DF_RETURN_IF_ERROR(WriteSideFiles(base, variant, options, *writer));
  DF_RETURN_IF_ERROR(writer->AddFile("README.md", ImportCard(report, options)));
  DF_RETURN_IF_ERROR(source.file().CheckIntact());
  DF_RETURN_IF_ERROR(base.CheckIntact());
  DF_RETURN_IF_ERROR(writer->Commit(
      {{"codec", {{"code", "scalar"}, {"source", "BitDelta"}}}, {"bytes", {{"delta", report.delta_bytes}}}}));
  return report;
}

}  // namespace df
