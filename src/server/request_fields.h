// Readers of single request fields, shared by chat and completions. Each returns what is wrong, or nothing.
#ifndef DELTAFOLD_SERVER_REQUEST_FIELDS_H_
#define DELTAFOLD_SERVER_REQUEST_FIELDS_H_

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "server/error_map.h"
#include "server/openai_types.h"

namespace df::server {

using FieldError = std::optional<ApiError>;

#define DF_RETURN_IF_FIELD_ERROR(expr)                                                              \
  do {                                                                                              \
    if (::df::server::FieldError df_field_error_ = (expr); df_field_error_) return df_field_error_; \
  } while (false)

// Absent and null leave `value` as it is.
FieldError ReadBool(const Json& root, std::string_view key, bool& value);
FieldError ReadInt(const Json& root, std::string_view key, IntRange range, std::optional<int64_t>& value);

struct NumberRange {
  double min = 0;
  double max = 0;
  bool min_excluded = false;
};
FieldError ReadNumber(const Json& root, std::string_view key, NumberRange range, std::optional<double>& value);

// At most `max_bytes`, without control characters.
FieldError ReadString(const Json& root, std::string_view key, size_t max_bytes, std::string& value);

// An array of token ids, each 0 to 2^31 - 1; `name` is how messages call it.
FieldError ReadTokenIds(const Json& array, std::string_view name, std::vector<int32_t>& ids);

// The values of a missing feature's field that ask for nothing, besides absent and null.
enum class Neutral {
  kNullOnly,
  kFalse,
  kTrue,
  kZero,        // a number, in [min, max] of the rule, else it is invalid rather than unsupported
  kOne,         // a number
  kCountOne,    // an integer >= 1
  kEmpty,       // [], {} or ""
  kTypeText,    // {"type": "text"}
  kNoneOrAuto,  // "none" or "auto"
  kTextOnly,    // ["text"]
};
struct MissingFeature {
  const char* field;
  Neutral neutral;
  double min = -1e308;
  double max = 1e308;
};
FieldError CheckMissingFeatures(const Json& root, std::span<const MissingFeature> features);

struct LengthRule {
  int64_t min_max_tokens = 1;  // least value of max_tokens
};
// All GenerationFields but `logprobs`, and the missing features that both routes share.
FieldError ReadGenerationFields(const Json& root, LengthRule rule, GenerationFields& fields);

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_REQUEST_FIELDS_H_
