// The bodies of OpenAI's requests, read strictly: a known field has the right type and range or is refused by name, a
// known field whose feature is missing is refused unless its value asks for nothing, unknown fields are left alone.
#ifndef DELTAFOLD_SERVER_OPENAI_TYPES_H_
#define DELTAFOLD_SERVER_OPENAI_TYPES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/json.h"
#include "engine/request.h"
#include "server/error_map.h"

namespace df::server {

// What chat and completions have in common. Absent: the variant's default.
struct GenerationFields {
  std::string model;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int64_t> top_k;
  std::optional<int64_t> max_tokens;
  std::optional<int64_t> seed;
  int64_t min_tokens = 0;
  std::optional<int64_t> logprobs;  // wanted, with so many of the likeliest tokens
  std::vector<int32_t> stop_token_ids;
  std::vector<std::string> stop;
  bool include_stop_str_in_output = false;
  bool ignore_eos = false;
  bool skip_special_tokens = true;
  bool stream = false;
  bool include_usage = false;
  std::string cache_salt;  // prompts share cached blocks with those of the same salt only
};

struct ChatRequest {
  GenerationFields fields;
  Json messages = Json::array();  // objects {role, content, name?}, content a string
  bool add_generation_prompt = true;
  Json chat_template_kwargs = Json::object();
};

struct CompletionRequest {
  GenerationFields fields;
  std::vector<std::variant<std::string, std::vector<int32_t>>> prompts;  // >= 1
  bool add_special_tokens = true;
  bool echo = false;  // max_tokens may be 0 then
};

inline constexpr size_t kMaxStopStrings = 64;
inline constexpr size_t kMaxCacheSaltBytes = 256;
inline constexpr size_t kMaxPrompts = 128;
// Of all tokens that one request has echoed, with the likeliest ones beside each: some 50 MB of JSON.
inline constexpr size_t kMaxEchoedLogprobs = size_t{1} << 20;
inline constexpr size_t kMaxMessages = 16384;  // a template goes over all of them, and each takes some 100 bytes
inline constexpr size_t kMaxTemplateKwargsBytes = size_t{64} << 10;
// Keys and values of a body: 100 prompts of 5000 token ids. Tiny ones take up to 100 bytes each.
inline constexpr size_t kMaxJsonItems = 500'000;

// JSON whose root must be an object. The error has code "invalid_json".
std::optional<ApiError> ParseBody(std::string_view body, Json& root);

// Absent result = `request` is complete. `root` is an object.
std::optional<ApiError> ReadChatRequest(const Json& root, ChatRequest& request);
std::optional<ApiError> ReadCompletionRequest(const Json& root, CompletionRequest& request);

// Both steps. Bodies may be large: body and JSON are freed on return.
std::optional<ApiError> ParseChatRequest(std::string body, ChatRequest& request);
std::optional<ApiError> ParseCompletionRequest(std::string body, CompletionRequest& request);

// The request's wishes over `defaults` (the variant's).
SamplingParams ToSamplingParams(const GenerationFields& fields, SamplingParams defaults);

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_OPENAI_TYPES_H_
