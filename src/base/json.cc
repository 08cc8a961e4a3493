#include "base/json.h"

#include <cmath>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/atomic_file.h"
#include "base/utf8.h"

namespace df {
namespace {

// Builds the value while the parser reads, so that depth, number and duplicate keys are seen before memory is spent on
// them. A depth check after parsing would be too late: copying or dumping a deep value overflows the stack.
class StrictBuilder final : public nlohmann::json_sax<Json> {
 public:
  explicit StrictBuilder(const JsonLimits& limits) : limits_(limits) {}
  ~StrictBuilder() override {
    for (Frame& frame : frames_) {
      Dismantle(frame.value);
      for (auto& [key, value] : frame.members) Dismantle(value);
    }
  }
  StrictBuilder(const StrictBuilder&) = delete;
  StrictBuilder& operator=(const StrictBuilder&) = delete;

  bool null() override { return Count() && Put(nullptr); }
  bool boolean(bool value) override { return Count() && Put(value); }
  bool number_integer(number_integer_t value) override { return Count() && Put(value); }
  bool number_unsigned(number_unsigned_t value) override { return Count() && Put(value); }
  bool number_float(number_float_t value, const string_t& text) override {
    if (!std::isfinite(value)) return Fail(Corrupt("number " + text.substr(0, 40) + " is out of range"));
    return Count() && Put(value);
  }
  bool string(string_t& value) override { return Count() && Put(std::move(value)); }
  bool binary(binary_t&) override { return Fail(Corrupt("binary value")); }
  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& value) override {
    if (!Count()) return false;
    if (!frames_.back().keys.insert(value).second)
      return Fail(Corrupt("duplicate key \"" + value.substr(0, 80) + "\""));
    frames_.back().key = std::move(value);
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    std::string what = error.what();
    const size_t text_start = what.find("] ");
    if (text_start != std::string::npos) what = what.substr(text_start + 2);
    return Fail(Corrupt("not valid JSON at byte " + std::to_string(position) + ": " + what.substr(0, 200)));
  }

  Status status() const { return status_; }
  Json Take() { return std::move(root_.value); }

 private:
  struct Frame {
    Json value;
    // Of an object, until all are known: the library's own list copies them whenever it grows.
    std::vector<std::pair<std::string, Json>> members;
    std::string key;
    std::unordered_set<std::string> keys;
  };

  bool Fail(Status status) {
    status_ = std::move(status);
    return false;
  }
  // One more key or value.
  bool Count() {
    if (++n_items_ <= limits_.max_items) return true;
    return Fail(ResourceExhausted("JSON of more than " + std::to_string(limits_.max_items) + " keys and values"));
  }
  // Takes `value` away when it has got the memory for it.
  bool Put(Json&& value) {
    if (frames_.empty()) {
      root_.value = std::move(value);
    } else if (Frame& top = frames_.back(); top.value.is_array()) {
      top.value.push_back(std::move(value));
    } else {
      top.members.emplace_back(std::move(top.key), std::move(value));
    }
    return true;
  }
  bool Open(Json value) {
    if (!Count()) return false;
    if (frames_.size() >= limits_.max_depth) {
      return Fail(ResourceExhausted("JSON nested deeper than " + std::to_string(limits_.max_depth) + " levels"));
    }
    frames_.push_back({std::move(value), {}, {}, {}});
    return true;
  }
  bool Close() {
    Frame& top = frames_.back();
    if (top.value.is_object()) {
      // ordered_json's operator[] searches linearly: 100 000 tensors would take 10^10 steps. Keys are known to be new.
      auto& object = top.value.get_ref<Json::object_t&>();
      object.reserve(top.members.size());
      for (auto& [key, value] : top.members) object.Container::emplace_back(std::move(key), std::move(value));
    }
    HeldJson held{std::move(top.value)};
    frames_.pop_back();
    return Put(std::move(held.value));
  }

  const JsonLimits limits_;
  size_t n_items_ = 0;
  Status status_;
  HeldJson root_;
  std::vector<Frame> frames_;
};

Status WrongType(std::string_view key, std::string_view expected, const Json& got) {
  return InvalidArgument("\"" + std::string(key) + "\" must be " + std::string(expected) + ", got " +
                         DumpJson(got).substr(0, 60));
}

Status Missing(std::string_view key) { return InvalidArgument("\"" + std::string(key) + "\" is missing"); }

Result<int64_t> ToInt(std::string_view key, const Json& value, IntRange range) {
  const std::string expected = "an integer from " + std::to_string(range.min) + " to " + std::to_string(range.max);
  if (!value.is_number_integer()) return WrongType(key, expected, value);
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return WrongType(key, expected, value);
  }
  const auto number = value.get<int64_t>();
  if (number < range.min || number > range.max) return WrongType(key, expected, value);
  return number;
}

Result<double> ToNumber(std::string_view key, const Json& value) {
  if (!value.is_number()) return WrongType(key, "a number", value);
  return value.get<double>();
}

}  // namespace

void Dismantle(Json& value) noexcept {
  if (auto* items = value.get_ptr<Json::array_t*>()) {
    for (Json& item : *items) Dismantle(item);
    items->clear();
  } else if (auto* members = value.get_ptr<Json::object_t*>()) {
    for (auto& [key, member] : *members) Dismantle(member);
    members->clear();
  }
}

Result<Json> ParseJson(std::string_view text, JsonLimits limits) {
  if (text.size() > limits.max_bytes) {
    return ResourceExhausted("JSON of " + std::to_string(text.size()) + " bytes, at most " +
                             std::to_string(limits.max_bytes) + " are accepted");
  }
  if (text.starts_with("\xEF\xBB\xBF")) return Corrupt("JSON starts with a byte order mark");
  if (!IsValidUtf8(text)) return Corrupt("JSON is not valid UTF-8");
  StrictBuilder builder(limits);
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) return builder.status();
  return builder.Take();
}

Result<Json> ReadJsonFile(const std::string& path, JsonLimits limits) {
  DF_ASSIGN_OR_RETURN(const std::string text, ReadFileBounded(path, limits.max_bytes));
  Result<Json> parsed = ParseJson(text, limits);
  if (!parsed.ok()) return parsed.status().Annotate(path);
  return parsed;
}

const Json* JsonMemberOrNull(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto member = object.find(std::string(key));
  if (member == object.end() || member->is_null()) return nullptr;
  return &*member;
}

Result<int64_t> JsonInt(const Json& object, std::string_view key, IntRange range) {
  const Json* value = JsonMemberOrNull(object, key);
  if (value == nullptr) return Missing(key);
  return ToInt(key, *value, range);
}

Result<int64_t> JsonIntOr(const Json& object, std::string_view key, IntRange range, int64_t otherwise) {
  const Json* value = JsonMemberOrNull(object, key);
  if (value == nullptr) return otherwise;
  return ToInt(key, *value, range);
}

Result<double> JsonNumber(const Json& object, std::string_view key) {
  const Json* value = JsonMemberOrNull(object, key);
  if (value == nullptr) return Missing(key);
  return ToNumber(key, *value);
}

Result<double> JsonNumberOr(const Json& object, std::string_view key, double otherwise) {
  const Json* value = JsonMemberOrNull(object, key);
  if (value == nullptr) return otherwise;
  return ToNumber(key, *value);
}

Result<bool> JsonBoolOr(const Json& object, std::string_view key, bool otherwise) {
  const Json* value = JsonMemberOrNull(object, key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) return WrongType(key, "true or false", *value);
  return value->get<bool>();
}

Result<std::string> JsonString(const Json& object, std::string_view key) {
  const Json* value = JsonMemberOrNull(object, key);
  if (value == nullptr) return Missing(key);
  if (!value->is_string()) return WrongType(key, "a string", *value);
  return value->get<std::string>();
}

Result<std::string> JsonStringOr(const Json& object, std::string_view key, std::string_view otherwise) {
  const Json* value = JsonMemberOrNull(object, key);
  if (value == nullptr) return std::string(otherwise);
  if (!value->is_string()) return WrongType(key, "a string", *value);
  return value->get<std::string>();
}

std::string DumpJson(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace df
