#include "server/openai_types.h"

#include <algorithm>
#include <array>
#include <utility>

#include "server/request_fields.h"

namespace df::server {
namespace {

constexpr MissingFeature kMissingInChat[] = {
    {"tools", Neutral::kEmpty},
    {"tool_choice", Neutral::kNoneOrAuto},
    {"functions", Neutral::kEmpty},
    {"function_call", Neutral::kNoneOrAuto},
    {"modalities", Neutral::kTextOnly},
    {"audio", Neutral::kNullOnly},
    {"prediction", Neutral::kNullOnly},
    {"web_search_options", Neutral::kNullOnly},
    {"reasoning_effort", Neutral::kNullOnly},
    {"verbosity", Neutral::kNullOnly},
    {"store", Neutral::kFalse},
    {"echo", Neutral::kFalse},
    {"continue_final_message", Neutral::kFalse},
    {"add_special_tokens", Neutral::kFalse},
    {"documents", Neutral::kEmpty},
    {"chat_template", Neutral::kNullOnly},
    {"mm_processor_kwargs", Neutral::kEmpty},
};

constexpr MissingFeature kMissingInCompletions[] = {
    {"suffix", Neutral::kEmpty},
    {"prompt_embeds", Neutral::kNullOnly},
};

constexpr std::array<std::string_view, 4> kRoles = {"system", "developer", "user", "assistant"};
// vLLM's: separate parts of one message are separate lines.
constexpr std::string_view kPartSeparator = "\n";

FieldError ReadPart(const Json& part, const std::string& name, std::string& text) {
  const Json* type = JsonMemberOrNull(part, "type");
  if (type == nullptr || !type->is_string()) return InvalidField(name, "an object with a type");
  if (*type != Json("text")) return UnsupportedField(name, "only parts of type text");
  const Json* value = JsonMemberOrNull(part, "text");
  if (value == nullptr || !value->is_string()) return InvalidField(name + ".text", "a string");
  text += value->get_ref<const std::string&>();
  return std::nullopt;
}

FieldError ReadContent(const Json& message, const std::string& name, std::string& text) {
  const Json* content = JsonMemberOrNull(message, "content");
  if (content == nullptr) return InvalidField(name + ".content", "a string or an array of text parts");
  if (content->is_string()) {
    text = content->get<std::string>();
    return std::nullopt;
  }
  if (!content->is_array() || content->empty()) {
    return InvalidField(name + ".content", "a string or an array of text parts");
  }
  for (size_t i = 0; i < content->size(); ++i) {
    if (i > 0) text += kPartSeparator;
    DF_RETURN_IF_FIELD_ERROR(ReadPart((*content)[i], name + ".content[" + std::to_string(i) + "]", text));
  }
  return std::nullopt;
}

FieldError ReadMessage(const Json& message, const std::string& name, Json& clean) {
  if (!message.is_object()) return InvalidField(name, "an object with role and content");
  const Json* role = JsonMemberOrNull(message, "role");
  if (role == nullptr || !role->is_string()) return InvalidField(name + ".role", "a string");
  const std::string& role_name = role->get_ref<const std::string&>();
  if (role_name == "tool" || role_name == "function") return UnsupportedField(name + ".role", "tool results");
  if (std::find(kRoles.begin(), kRoles.end(), role_name) == kRoles.end()) {
    return InvalidField(name + ".role", "system, developer, user or assistant");
  }
  for (const char* field : {"tool_calls", "function_call", "audio"}) {
    const Json* value = JsonMemberOrNull(message, field);
    if (value != nullptr && !(value->is_array() && value->empty())) return UnsupportedField(name + "." + field);
  }
  std::string text;
  DF_RETURN_IF_FIELD_ERROR(ReadContent(message, name, text));
  // "developer" is OpenAI's newer word for "system"; templates only know the old one.
  clean["role"] = role_name == "developer" ? "system" : role_name;
  clean["content"] = std::move(text);
  if (const Json* speaker = JsonMemberOrNull(message, "name")) {
    if (!speaker->is_string()) return InvalidField(name + ".name", "a string");
    clean["name"] = *speaker;
  }
  return std::nullopt;
}

FieldError ReadMessages(const Json& root, Json& messages) {
  const Json* list = JsonMemberOrNull(root, "messages");
  if (list == nullptr || !list->is_array() || list->empty()) {
    return InvalidField("messages", "an array with at least one message");
  }
  if (list->size() > kMaxMessages) {
    return InvalidField("messages", "at most " + std::to_string(kMaxMessages) + " messages");
  }
  for (size_t i = 0; i < list->size(); ++i) {
    Json clean = Json::object();
    DF_RETURN_IF_FIELD_ERROR(ReadMessage((*list)[i], "messages[" + std::to_string(i) + "]", clean));
    messages.push_back(std::move(clean));
  }
  return std::nullopt;
}

FieldError ReadTemplateKwargs(const Json& root, Json& kwargs) {
  const Json* value = JsonMemberOrNull(root, "chat_template_kwargs");
  if (value == nullptr) return std::nullopt;
  if (!value->is_object()) return InvalidField("chat_template_kwargs", "an object");
  if (DumpJson(*value).size() > kMaxTemplateKwargsBytes) {
    return InvalidField("chat_template_kwargs", "at most " + std::to_string(kMaxTemplateKwargsBytes) + " bytes");
  }
  kwargs = *value;
  return std::nullopt;
}

FieldError ReadPrompt(const Json& prompt, CompletionRequest& request) {
  if (prompt.is_string()) {
    request.prompts.emplace_back(prompt.get<std::string>());
    return std::nullopt;
  }
  if (!prompt.is_array() || prompt.empty()) return InvalidField("prompt", "a string, token ids, or an array of those");
  if (prompt[0].is_number()) {
    std::vector<int32_t> ids;
    DF_RETURN_IF_FIELD_ERROR(ReadTokenIds(prompt, "prompt", ids));
    request.prompts.emplace_back(std::move(ids));
    return std::nullopt;
  }
  if (prompt.size() > kMaxPrompts) return InvalidField("prompt", "at most " + std::to_string(kMaxPrompts) + " prompts");
  for (size_t i = 0; i < prompt.size(); ++i) {
    const std::string name = "prompt[" + std::to_string(i) + "]";
    if (prompt[i].is_string()) {
      request.prompts.emplace_back(prompt[i].get<std::string>());
    } else {
      if (!prompt[i].is_array()) return InvalidField(name, "a string or an array of token ids");
      std::vector<int32_t> ids;
      DF_RETURN_IF_FIELD_ERROR(ReadTokenIds(prompt[i], name, ids));
      request.prompts.emplace_back(std::move(ids));
    }
  }
  return std::nullopt;
}

FieldError ReadChatLogprobs(const Json& root, GenerationFields& fields) {
  bool wanted = false;
  std::optional<int64_t> n_top;
  DF_RETURN_IF_FIELD_ERROR(ReadBool(root, "logprobs", wanted));
  DF_RETURN_IF_FIELD_ERROR(ReadInt(root, "top_logprobs", {0, INT32_MAX}, n_top));
  if (n_top.value_or(0) > 0 && !wanted) return InvalidField("top_logprobs", "left out unless logprobs is true");
  if (wanted) fields.logprobs = n_top.value_or(0);
  return std::nullopt;
}

bool IsEmptyPrompt(const std::variant<std::string, std::vector<int32_t>>& prompt) {
  return std::visit([](const auto& value) { return value.empty(); }, prompt);
}

}  // namespace

std::optional<ApiError> ParseBody(std::string_view body, Json& root) {
  Result<Json> parsed = ParseJson(body, {.max_items = kMaxJsonItems});
  if (!parsed.ok()) return ApiError{.message = parsed.status().message(), .param = "", .code = "invalid_json"};
  HeldJson held{*std::move(parsed)};
  if (!held.value.is_object())
    return ApiError{.message = "the body must be a JSON object", .param = "", .code = "invalid_json"};
  root = std::move(held.value);
  return std::nullopt;
}

std::optional<ApiError> ReadChatRequest(const Json& root, ChatRequest& request) {
  DF_RETURN_IF_FIELD_ERROR(ReadGenerationFields(root, {.min_max_tokens = 1}, request.fields));
  DF_RETURN_IF_FIELD_ERROR(ReadChatLogprobs(root, request.fields));
  DF_RETURN_IF_FIELD_ERROR(CheckMissingFeatures(root, kMissingInChat));
  DF_RETURN_IF_FIELD_ERROR(ReadBool(root, "add_generation_prompt", request.add_generation_prompt));
  DF_RETURN_IF_FIELD_ERROR(ReadTemplateKwargs(root, request.chat_template_kwargs));
  return ReadMessages(root, request.messages);
}

std::optional<ApiError> ReadCompletionRequest(const Json& root, CompletionRequest& request) {
  DF_RETURN_IF_FIELD_ERROR(ReadBool(root, "echo", request.echo));
  DF_RETURN_IF_FIELD_ERROR(ReadGenerationFields(root, {.min_max_tokens = request.echo ? 0 : 1}, request.fields));
  DF_RETURN_IF_FIELD_ERROR(ReadInt(root, "logprobs", {0, INT32_MAX}, request.fields.logprobs));
  DF_RETURN_IF_FIELD_ERROR(CheckMissingFeatures(root, kMissingInCompletions));
  DF_RETURN_IF_FIELD_ERROR(ReadBool(root, "add_special_tokens", request.add_special_tokens));
  // OpenAI's default; chat has none.
  if (!request.fields.max_tokens) request.fields.max_tokens = std::max<int64_t>(16, request.fields.min_tokens);
  const Json* prompt = JsonMemberOrNull(root, "prompt");
  if (prompt == nullptr) return InvalidField("prompt", "a string, token ids, or an array of those");
  DF_RETURN_IF_FIELD_ERROR(ReadPrompt(*prompt, request));
  if (std::any_of(request.prompts.begin(), request.prompts.end(), IsEmptyPrompt)) {
    return InvalidField("prompt", "not empty");
  }
  return std::nullopt;
}

std::optional<ApiError> ParseChatRequest(std::string body, ChatRequest& request) {
  HeldJson root;
  DF_RETURN_IF_FIELD_ERROR(ParseBody(std::exchange(body, {}), root.value));
  return ReadChatRequest(root.value, request);
}

std::optional<ApiError> ParseCompletionRequest(std::string body, CompletionRequest& request) {
  HeldJson root;
  DF_RETURN_IF_FIELD_ERROR(ParseBody(std::exchange(body, {}), root.value));
  return ReadCompletionRequest(root.value, request);
}

}  // namespace df::server
