#include "merge/adapter_writer.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/atomic_file.h"
#include "base/json.h"
#include "codec/row_ops.h"
#include "format/digest.h"
#include "format/safetensors.h"
#include "format/served_files.h"

namespace df {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";
constexpr char kConfigName[] = "/adapter_config.json";
constexpr char kWeightsName[] = "/adapter_model.safetensors";
constexpr size_t kPieceElements = size_t{1} << 20;

Json ConfigOf(const AdapterFactors& factors, const std::string& base_name) {
  size_t rank = 1;
  for (const auto& [path, pair] : factors.modules) rank = std::max(rank, pair.rank());
  Json ranks = Json::object(), targets = Json::array();
  for (const auto& [path, pair] : factors.modules) {
    targets.push_back(path);
    if (pair.rank() != rank) ranks[path] = pair.rank();
  }
  return {{"peft_type", "LORA"},
          {"task_type", "CAUSAL_LM"},
          {"base_model_name_or_path", base_name},
          {"r", rank},
          {"lora_alpha", rank},
          {"rank_pattern", ranks},
          {"alpha_pattern", ranks},  // a scale of 1 everywhere
          {"target_modules", targets},
          {"modules_to_save", nullptr},
          {"bias", "none"},
          {"lora_dropout", 0.0},
          {"fan_in_fan_out", false},
          {"inference_mode", true},
          {"init_lora_weights", true},
          {"use_dora", false},
          {"use_rslora", false}};
}

Status WriteMatrix(MatView<const float> values, DType dtype, SafetensorsWriter& writer) {
  const size_t n = values.rows * values.cols;
  std::vector<uint8_t> piece(std::min(n, kPieceElements) * DTypeBytes(dtype));
  for (size_t first = 0; first < n; first += kPieceElements) {
    const std::span<const float> part(values.data + first, std::min(kPieceElements, n - first));
    row_ops::Narrow(part, dtype, piece.data());
    DF_RETURN_IF_ERROR(writer.Write({piece.data(), part.size() * DTypeBytes(dtype)}));
  }
  return Status::Ok();
}

Status CopyFile(const std::string& from, const std::string& to) {
  DF_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(from));
  DF_ASSIGN_OR_RETURN(AtomicFile copy, AtomicFile::Create(to));
  DF_RETURN_IF_ERROR(copy.Write(file->bytes()));
  DF_RETURN_IF_ERROR(file->CheckIntact());
  return copy.Commit();
}

}  // namespace

uint64_t TensorBytes(const AdapterFactors& factors) {
  uint64_t elements = 0;
  for (const auto& [path, pair] : factors.modules) elements += pair.rank() * (pair.d_in() + pair.d_out());
  return elements * DTypeBytes(factors.dtype);
}

uint64_t TensorBytes(const PeftAdapter& adapter) {
  uint64_t bytes = 0;
  for (const NamedTensor& tensor : adapter.file().tensors()) bytes += tensor.view.bytes.size();
  return bytes;
}

Status WriteAdapter(const AdapterFactors& factors, const std::string& base_name, const std::string& directory) {
  std::vector<TensorSpec> specs;
  for (const auto& [path, pair] : factors.modules) {
    const std::string name = std::string(kPrefix) + path;
    specs.push_back({name + ".lora_A.weight", factors.dtype, Shape{pair.rank(), pair.d_in()}});
    specs.push_back({name + ".lora_B.weight", factors.dtype, Shape{pair.d_out(), pair.rank()}});
  }
  DF_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                      SafetensorsWriter::Create(directory + kWeightsName, specs, {{"format", "pt"}}));
  for (const auto& [path, pair] : factors.modules) {
    DF_RETURN_IF_ERROR(WriteMatrix(pair.a.view(), factors.dtype, writer));
    DF_RETURN_IF_ERROR(WriteMatrix(pair.b.view(), factors.dtype, writer));
  }
  DF_RETURN_IF_ERROR(writer.Commit());
  return WriteFileAtomically(directory + kConfigName, DumpJson(ConfigOf(factors, base_name), 2) + "\n");
}

Status CopyAdapter(const PeftAdapter& adapter, const std::string& directory) {
  DF_RETURN_IF_ERROR(CopyFile(adapter.directory() + kWeightsName, directory + kWeightsName));
  return CopyFile(adapter.directory() + kConfigName, directory + kConfigName);
}

Status CopyServedFiles(const std::string& from, const std::string& to) {
  DF_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListServedFiles(from));
  for (const std::string& name : names) {
    std::error_code error;
    std::filesystem::create_directories(std::filesystem::path(to + "/" + name).parent_path(), error);
    if (error) return IoError("cannot create the directory of " + to + "/" + name, error.value());
    DF_RETURN_IF_ERROR(CopyFile(from + "/" + name, to + "/" + name));
  }
  return Status::Ok();
}

Result<std::string> DigestOfServedFiles(const std::string& directory) {
  Digest digest;
  DF_ASSIGN_OR_RETURN(const bool has_any, AddServedFiles(directory, digest));
  return has_any ? digest.Hex() : std::string();
}

}  // namespace df
