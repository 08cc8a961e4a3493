#include <unordered_set>

#include "base/json.h"
#include "base/utf8.h"
#include "format/message.h"
#include "format/safetensors.h"

namespace df {
namespace {

constexpr size_t kHeaderAlignmentBytes = 64;  // a cache line: the first tensor starts on one when the file is mapped

Result<uint64_t> CheckedBytes(const TensorSpec& spec) {
  uint64_t bytes = 0;
  const std::optional<size_t> elements = spec.shape.TryElements();
  if (!elements || __builtin_mul_overflow(*elements, DTypeBytes(spec.dtype), &bytes)) {
    return InvalidArgument("tensor " + Quoted(spec.name) + " of shape " + ToString(spec.shape) +
                           " is larger than 2^64 bytes");
  }
  return bytes;
}

std::string Entry(const TensorSpec& spec, uint64_t begin_bytes, uint64_t end_bytes) {
  std::string text =
      DumpJson(Json(spec.name)) + ":{\"dtype\":\"" + std::string(DTypeName(spec.dtype)) + "\",\"shape\":[";
  for (size_t i = 0; i < spec.shape.rank(); ++i) text += (i > 0 ? "," : "") + std::to_string(spec.shape[i]);
  return text + "],\"data_offsets\":[" + std::to_string(begin_bytes) + "," + std::to_string(end_bytes) + "]}";
}

Result<std::string> MetadataText(const std::map<std::string, std::string>& metadata) {
  Json object = Json::object();
  for (const auto& [key, value] : metadata) {
    if (!IsValidUtf8(key) || !IsValidUtf8(value)) {
      return InvalidArgument("metadata " + Quoted(key) + " is not valid UTF-8");
    }
    object[key] = value;
  }
  return "\"__metadata__\":" + DumpJson(object);
}

}  // namespace

Result<SafetensorsLayout> LayOutSafetensors(const std::vector<TensorSpec>& specs,
                                            const std::map<std::string, std::string>& metadata) {
  SafetensorsLayout layout;
  std::string header = "{";
  if (!metadata.empty()) {
    DF_ASSIGN_OR_RETURN(const std::string text, MetadataText(metadata));
    header += text;
  }
  std::unordered_set<std::string_view> names;
  for (const TensorSpec& spec : specs) {
    if (spec.name == "__metadata__" || !IsValidUtf8(spec.name)) {
      return InvalidArgument("a tensor cannot be named " + Quoted(spec.name));
    }
    if (!names.insert(spec.name).second) return InvalidArgument("tensor " + Quoted(spec.name) + " is given twice");
    DF_ASSIGN_OR_RETURN(const uint64_t bytes, CheckedBytes(spec));
    const uint64_t begin_bytes = layout.data_bytes;
    layout.begin_bytes.push_back(begin_bytes);
    if (__builtin_add_overflow(begin_bytes, bytes, &layout.data_bytes)) {
      return InvalidArgument("the tensors together are larger than 2^64 bytes");
    }
    if (header.size() > 1) header += ',';
    header += Entry(spec, begin_bytes, layout.data_bytes);
  }
  header += '}';
  while ((sizeof(uint64_t) + header.size()) % kHeaderAlignmentBytes != 0) header += ' ';
  if (header.size() > kMaxSafetensorsHeaderBytes) {
    return InvalidArgument("the header would have " + std::to_string(header.size()) + " bytes, at most " +
                           std::to_string(kMaxSafetensorsHeaderBytes) + " are allowed: write several files");
  }
  const uint64_t header_bytes = header.size();
  layout.prefix.assign(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  layout.prefix += header;
  return layout;
}

void PadSafetensorsPrefix(uint64_t size_bytes, std::string& prefix) {
  DF_CHECK(size_bytes >= prefix.size() && size_bytes % kHeaderAlignmentBytes == 0);
  prefix.resize(size_bytes, ' ');
  const uint64_t header_bytes = size_bytes - sizeof(header_bytes);
  prefix.replace(0, sizeof(header_bytes), reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
}

Result<SafetensorsWriter> SafetensorsWriter::Create(const std::string& path, std::vector<TensorSpec> specs,
                                                    const std::map<std::string, std::string>& metadata) {
  Result<SafetensorsLayout> layout = LayOutSafetensors(specs, metadata);
  if (!layout.ok()) return layout.status().Annotate(path);
  DF_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  DF_RETURN_IF_ERROR(file.Write(AsBytes(layout->prefix)));
  return SafetensorsWriter(std::move(file), layout->data_bytes);
}

Status SafetensorsWriter::Write(Bytes data) {
  if (data.size() > missing_bytes_) {
    return Internal(std::to_string(data.size()) + " bytes of tensor data written, the header leaves room for " +
                    std::to_string(missing_bytes_));
  }
  DF_RETURN_IF_ERROR(file_.Write(data));
  missing_bytes_ -= data.size();
  return Status::Ok();
}

Status SafetensorsWriter::Commit() {
  if (missing_bytes_ != 0) return Internal(std::to_string(missing_bytes_) + " bytes of tensor data were never written");
  return file_.Commit();
}

}  // namespace df
