#include "format/safetensors_header.h"

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "format/message.h"

namespace df::internal {
namespace {

using Plain = nlohmann::json;

// The grammar is { name: { "dtype": string, "shape": [int], "data_offsets": [int, int] }, "__metadata__": { key: string
// } }: anything else is refused at the event where it starts, so nesting never goes deeper than three.
class HeaderReader final : public nlohmann::json_sax<Plain> {
 public:
  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("true or false"); }
  bool number_integer(number_integer_t value) override {
    return Unexpected("the negative number " + std::to_string(value));
  }
  bool number_unsigned(number_unsigned_t value) override { return PutNumber(value); }
  bool number_float(number_float_t, const string_t& text) override {
    return Unexpected("the number " + text.substr(0, 40));
  }
  bool string(string_t& value) override;
  bool binary(binary_t&) override { return Unexpected("binary data"); }
  bool start_object(size_t) override;
  bool key(string_t& value) override;
  bool end_object() override;
  bool start_array(size_t) override;
  bool end_array() override;
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return Fail(Corrupt("header is not valid JSON at its byte " + std::to_string(position)));
  }

  Status status() const { return status_; }
  HeaderEntries Take() { return std::move(entries_); }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };
  enum Field : unsigned { kNone = 0, kDType = 1, kShapeField = 2, kOffsetsField = 4, kAll = 7 };

  bool Fail(Status status) {
    status_ = std::move(status);
    return false;
  }
  bool Unexpected(const std::string& what);
  bool PutNumber(uint64_t value);
  bool TensorKey(const std::string& name);
  std::string Where() const;

  Place place_ = Place::kStart;
  std::string metadata_key_;
  bool has_metadata_ = false;
  bool value_due_is_metadata_ = false;
  Field field_ = kNone;  // whose value comes next
  unsigned fields_seen_ = 0;
  TensorEntry tensor_;
  std::array<size_t, Shape::kMaxRank> dims_ = {};
  std::array<uint64_t, 2> offsets_ = {};
  size_t n_numbers_ = 0;
  HeaderEntries entries_;
  Status status_;
};

std::string HeaderReader::Where() const {
  switch (place_) {
    case Place::kStart: return "instead of the header object";
    case Place::kTop: return value_due_is_metadata_ ? "as __metadata__" : "as entry of tensor " + Quoted(tensor_.name);
    case Place::kMetadata:
      return "as value of __metadata__ key " + Quoted(metadata_key_) + " (only strings are allowed)";
    case Place::kShape: return "in shape of tensor " + Quoted(tensor_.name);
    case Place::kOffsets: return "in data_offsets of tensor " + Quoted(tensor_.name);
    default: break;
  }
  const char* name = field_ == kDType ? "dtype" : field_ == kShapeField ? "shape" : "data_offsets";
  return std::string("as ") + name + " of tensor " + Quoted(tensor_.name);
}

bool HeaderReader::Unexpected(const std::string& what) { return Fail(Corrupt("found " + what + " " + Where())); }

bool HeaderReader::string(string_t& value) {
  if (place_ == Place::kMetadata) {
    entries_.metadata[metadata_key_] = std::move(value);
    return true;
  }
  if (place_ != Place::kTensor || field_ != kDType) return Unexpected("the string " + Quoted(value));
  const std::optional<DType> dtype = DTypeFromName(value);
  if (!dtype) return Fail(Unsupported("tensor " + Quoted(tensor_.name) + " has the unknown dtype " + Quoted(value)));
  tensor_.dtype = *dtype;
  return true;
}

bool HeaderReader::start_object(size_t) {
  if (place_ == Place::kStart) {
    place_ = Place::kTop;
    return true;
  }
  if (place_ != Place::kTop) return Unexpected("an object");
  place_ = value_due_is_metadata_ ? Place::kMetadata : Place::kTensor;
  field_ = kNone;
  fields_seen_ = 0;
  return true;
}

bool HeaderReader::key(string_t& value) {
  if (place_ == Place::kTensor) return TensorKey(value);
  if (place_ == Place::kMetadata) {
    if (entries_.metadata.contains(value)) return Fail(Corrupt("__metadata__ has the key " + Quoted(value) + " twice"));
    metadata_key_ = std::move(value);
    return true;
  }
  value_due_is_metadata_ = value == "__metadata__";
  if (value_due_is_metadata_ && std::exchange(has_metadata_, true)) return Fail(Corrupt("__metadata__ stands twice"));
  tensor_ = {};
  if (!value_due_is_metadata_) tensor_.name = std::move(value);
  return true;
}

bool HeaderReader::TensorKey(const std::string& name) {
  field_ = name == "dtype" ? kDType : name == "shape" ? kShapeField : name == "data_offsets" ? kOffsetsField : kNone;
  if (field_ == kNone)
    return Fail(Corrupt("tensor " + Quoted(tensor_.name) + " has the unknown field " + Quoted(name)));
  if ((fields_seen_ & field_) != 0) return Fail(Corrupt("tensor " + Quoted(tensor_.name) + " has " + name + " twice"));
  fields_seen_ |= field_;
  return true;
}

bool HeaderReader::end_object() {
  if (place_ == Place::kTop) {
    place_ = Place::kEnd;
    return true;
  }
  if (place_ == Place::kTensor) {
    if (fields_seen_ != kAll) {
      return Fail(Corrupt("tensor " + Quoted(tensor_.name) + " lacks one of dtype, shape, data_offsets"));
    }
    entries_.tensors.push_back(std::move(tensor_));
  }
  place_ = Place::kTop;
  return true;
}

bool HeaderReader::start_array(size_t) {
  if (place_ != Place::kTensor || (field_ != kShapeField && field_ != kOffsetsField)) return Unexpected("an array");
  place_ = field_ == kShapeField ? Place::kShape : Place::kOffsets;
  n_numbers_ = 0;
  return true;
}

bool HeaderReader::PutNumber(uint64_t value) {
  if (place_ == Place::kShape) {
    if (n_numbers_ == dims_.size()) {
      return Fail(Unsupported("tensor " + Quoted(tensor_.name) + " has more than " + std::to_string(dims_.size()) +
                              " dimensions"));
    }
    dims_[n_numbers_++] = value;
    return true;
  }
  if (place_ != Place::kOffsets) return Unexpected("the number " + std::to_string(value));
  if (n_numbers_ == 2) return Fail(Corrupt("tensor " + Quoted(tensor_.name) + " has more than 2 data_offsets"));
  offsets_[n_numbers_++] = value;
  return true;
}

bool HeaderReader::end_array() {
  if (place_ == Place::kShape) {
    tensor_.shape = *Shape::FromSpan({dims_.data(), n_numbers_});
  } else {
    if (n_numbers_ != 2) {
      return Fail(Corrupt("tensor " + Quoted(tensor_.name) + " has " + std::to_string(n_numbers_) +
                          " data_offsets, expected 2"));
    }
    tensor_.begin_bytes = offsets_[0];
    tensor_.end_bytes = offsets_[1];
  }
  place_ = Place::kTensor;
  return true;
}

}  // namespace

Result<HeaderEntries> ParseHeaderJson(std::string_view text) {
  HeaderReader reader;
  if (!Plain::sax_parse(text.begin(), text.end(), &reader)) return reader.status();
  return reader.Take();
}

}  // namespace df::internal
