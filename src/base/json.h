// JSON from untrusted bytes (RFC 8259, strict): bounded depth and size, no duplicate keys, no BOM, valid UTF-8, finite
// numbers; and readers that never convert silently.
#ifndef DELTAFOLD_BASE_JSON_H_
#define DELTAFOLD_BASE_JSON_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/json_fwd.h"
#include "base/status.h"

namespace df {

struct JsonLimits {
  size_t max_depth = 64;
  size_t max_bytes = size_t{16} << 20;
  // Keys and values. A text can hold one in every byte or two, and each takes up to 100 times that in memory.
  size_t max_items = SIZE_MAX;
};

// Empties arrays and objects from the inside out, by a stack as deep as the value. The library's own destructor takes
// memory for every element, and ends the process where it is refused; of what is empty it takes none.
void Dismantle(Json& value) noexcept;

// A value that ends so: for what strangers send.
struct HeldJson {
  Json value = {};
  ~HeldJson() { Dismantle(value); }
};

// Where memory is refused std::bad_alloc passes through, and nothing is left. The only errors are kCorrupt (not JSON;
// the message has the byte position) and kResourceExhausted (too deep, too big, too many items).
Result<Json> ParseJson(std::string_view text, JsonLimits limits = {});
Result<Json> ReadJsonFile(const std::string& path, JsonLimits limits = {});

// Member readers: `nullopt`-like default when the key is absent or null; kInvalidArgument naming the key, the expected
// and the found type otherwise. Integers accept an integral number only: 8.5 and "8" are refused.
struct IntRange {
  int64_t min = INT64_MIN;
  int64_t max = INT64_MAX;
};
Result<int64_t> JsonInt(const Json& object, std::string_view key, IntRange range);  // required
Result<int64_t> JsonIntOr(const Json& object, std::string_view key, IntRange range, int64_t otherwise);
Result<double> JsonNumber(const Json& object, std::string_view key);  // required, finite
Result<double> JsonNumberOr(const Json& object, std::string_view key, double otherwise);
Result<bool> JsonBoolOr(const Json& object, std::string_view key, bool otherwise);
Result<std::string> JsonString(const Json& object, std::string_view key);  // required
Result<std::string> JsonStringOr(const Json& object, std::string_view key, std::string_view otherwise);

// The member, or nullptr when absent or null.
const Json* JsonMemberOrNull(const Json& object, std::string_view key);

// One line; invalid UTF-8 is replaced, never thrown upon.
std::string DumpJson(const Json& value, int indent = -1);

}  // namespace df

#endif  // DELTAFOLD_BASE_JSON_H_
