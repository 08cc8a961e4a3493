#include "format/safetensors.h"

#include <algorithm>
#include <tuple>
#include <unordered_set>

#include "base/utf8.h"
#include "format/message.h"
#include "format/safetensors_header.h"

namespace df {
namespace {

using internal::TensorEntry;

constexpr size_t kLengthBytes = 8;

// The JSON text of the header, or why the first bytes cannot be a header.
Result<std::string_view> HeaderText(Bytes file) {
  if (file.size() < kLengthBytes) {
    return Corrupt("file has " + std::to_string(file.size()) + " bytes, too few for the 8-byte header length");
  }
  const auto header_bytes = LoadUnaligned<uint64_t>(file.data());
  const uint64_t rest_bytes = file.size() - kLengthBytes;
  if (header_bytes > rest_bytes) {
    return Corrupt("header length " + std::to_string(header_bytes) + " is more than the " + std::to_string(rest_bytes) +
                   " bytes that follow it");
  }
  if (header_bytes > kMaxSafetensorsHeaderBytes) {
    return ResourceExhausted("header length " + std::to_string(header_bytes) + " is above the limit of " +
                             std::to_string(kMaxSafetensorsHeaderBytes) + " bytes");
  }
  std::string_view text = AsText(file.subspan(kLengthBytes, header_bytes));
  if (!text.starts_with('{')) return Corrupt("header does not start with '{'");
  if (!IsValidUtf8(text)) return Corrupt("header is not valid UTF-8");
  const size_t last = text.find_last_not_of(' ');
  if (text[last] != '}') return Corrupt("header does not end with '}' and spaces");
  return text.substr(0, last + 1);
}

Status CheckNamesDiffer(const std::vector<TensorEntry>& tensors) {
  std::unordered_set<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorEntry& tensor : tensors) {
    if (!names.insert(tensor.name).second) return Corrupt("tensor " + Quoted(tensor.name) + " stands twice");
  }
  return Status::Ok();
}

std::string OffsetsText(const TensorEntry& tensor) {
  return "data_offsets [" + std::to_string(tensor.begin_bytes) + ", " + std::to_string(tensor.end_bytes) + "]";
}

Status CheckSize(const TensorEntry& tensor, uint64_t data_bytes) {
  if (tensor.begin_bytes > tensor.end_bytes) {
    return Corrupt("tensor " + Quoted(tensor.name) + " has reversed " + OffsetsText(tensor));
  }
  if (tensor.end_bytes > data_bytes) {
    return Corrupt("tensor " + Quoted(tensor.name) + " has " + OffsetsText(tensor) + " past the end of the data at " +
                   std::to_string(data_bytes));
  }
  size_t bytes = 0;
  const std::optional<size_t> elements = tensor.shape.TryElements();
  const bool overflows = !elements || __builtin_mul_overflow(*elements, DTypeBytes(tensor.dtype), &bytes);
  const uint64_t stored_bytes = tensor.end_bytes - tensor.begin_bytes;
  if (!overflows && bytes == stored_bytes) return Status::Ok();
  const std::string what =
      "tensor " + Quoted(tensor.name) + " with " + std::string(DTypeName(tensor.dtype)) + " " + ToString(tensor.shape);
  if (overflows) return Corrupt(what + " is larger than 2^64 bytes");
  return Corrupt(what + " needs " + std::to_string(bytes) + " bytes, its " + OffsetsText(tensor) + " give " +
                 std::to_string(stored_bytes));
}

// Sorted by offset, the tensors must cover the data from 0 to its end.
Status CheckCoverage(const std::vector<TensorEntry>& tensors, uint64_t data_bytes) {
  uint64_t covered_bytes = 0;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.begin_bytes < covered_bytes) {
      return Corrupt("tensor " + Quoted(tensor.name) + " begins at " + std::to_string(tensor.begin_bytes) +
                     " and overlaps another that ends at " + std::to_string(covered_bytes));
    }
    if (tensor.begin_bytes > covered_bytes) {
      return Corrupt("bytes " + std::to_string(covered_bytes) + " to " + std::to_string(tensor.begin_bytes) +
                     " of the data, before tensor " + Quoted(tensor.name) + ", belong to no tensor");
    }
    covered_bytes = tensor.end_bytes;
  }
  if (covered_bytes == data_bytes) return Status::Ok();
  return Corrupt(std::to_string(data_bytes - covered_bytes) + " trailing bytes after the last tensor");
}

}  // namespace

Result<SafetensorsHeader> ParseSafetensors(Bytes file) {
  DF_ASSIGN_OR_RETURN(const std::string_view text, HeaderText(file));
  DF_ASSIGN_OR_RETURN(internal::HeaderEntries entries, internal::ParseHeaderJson(text));
  std::vector<TensorEntry>& tensors = entries.tensors;
  DF_RETURN_IF_ERROR(CheckNamesDiffer(tensors));

  const Bytes data = file.subspan(kLengthBytes + LoadUnaligned<uint64_t>(file.data()));
  for (const TensorEntry& tensor : tensors) DF_RETURN_IF_ERROR(CheckSize(tensor, data.size()));
  const auto by_offset = [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin_bytes, a.end_bytes, a.name) < std::tie(b.begin_bytes, b.end_bytes, b.name);
  };
  if (!std::is_sorted(tensors.begin(), tensors.end(), by_offset)) std::sort(tensors.begin(), tensors.end(), by_offset);
  DF_RETURN_IF_ERROR(CheckCoverage(tensors, data.size()));

  SafetensorsHeader header;
  header.metadata = std::move(entries.metadata);
  header.tensors.reserve(tensors.size());
  for (TensorEntry& tensor : tensors) {
    const Bytes bytes = data.subspan(tensor.begin_bytes, tensor.end_bytes - tensor.begin_bytes);
    header.tensors.push_back({std::move(tensor.name), {tensor.dtype, tensor.shape, bytes}});
  }
  return header;
}

SafetensorsFile::SafetensorsFile(std::unique_ptr<MappedFile> file, SafetensorsHeader header)
    : file_(std::move(file)), header_(std::move(header)), by_name_(header_.tensors.size()) {
  for (size_t i = 0; i < by_name_.size(); ++i) by_name_[i] = i;
  std::sort(by_name_.begin(), by_name_.end(),
            [this](size_t a, size_t b) { return header_.tensors[a].name < header_.tensors[b].name; });
}

Result<std::shared_ptr<const SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  DF_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  Result<SafetensorsHeader> header = ParseSafetensors(file->bytes());
  DF_RETURN_IF_ERROR(file->CheckIntact());
  if (!header.ok()) return header.status().Annotate(path);
  return std::shared_ptr<const SafetensorsFile>(new SafetensorsFile(std::move(file), *std::move(header)));
}

const TensorView* SafetensorsFile::FindOrNull(std::string_view name) const {
  const auto at = std::lower_bound(by_name_.begin(), by_name_.end(), name, [this](size_t index, std::string_view n) {
    return header_.tensors[index].name < n;
  });
  if (at == by_name_.end() || header_.tensors[*at].name != name) return nullptr;
  return &header_.tensors[*at].view;
}

}  // namespace df
