#include "engine/prompt_tokens.h"

#include <algorithm>

#include "text/chat_template.h"
#include "text/prompt.h"

namespace df {
namespace {

// Strings of the messages, as a lower bound of what was asked: a template may add to them.
size_t TextBytes(const Json& json) {
  if (json.is_string()) return json.get_ref<const std::string&>().size();
  size_t sum = 0;
  if (json.is_structured()) {
    for (const Json& child : json) sum += TextBytes(child);
  }
  return sum;
}

Status TooLong(size_t text_bytes, size_t context_tokens) {
  return ContextLengthExceeded(std::to_string(text_bytes) + " bytes of text", context_tokens);
}

Result<std::vector<int32_t>> FromMessages(const TextRequest& request, const Json& messages, size_t context_tokens) {
  const ModelText& text = *request.variant->text;
  ChatPromptOptions options;
  options.render.add_generation_prompt = request.add_generation_prompt;
  options.render.kwargs = request.chat_template_kwargs;
  const size_t max_text_bytes = text.tokenizer->MaxTextBytes(static_cast<int64_t>(context_tokens));
  options.encode.max_text_bytes = std::min(options.encode.max_text_bytes, max_text_bytes);
  Result<std::vector<int32_t>> tokens = EncodeChat(text, messages, options);
  if (tokens.ok() || tokens.status().code() != StatusCode::kResourceExhausted) return tokens;
  // The request is at fault, not our load: either its text is too long, or it drives the template too far.
  const size_t text_bytes = TextBytes(messages);
  if (text_bytes > options.encode.max_text_bytes) return TooLong(text_bytes, context_tokens);
  return InvalidArgument("messages: " + tokens.status().message());
}

Result<std::vector<int32_t>> FromText(const TextRequest& request, const std::string& prompt, size_t context_tokens) {
  const ModelText& text = *request.variant->text;
  const size_t max_text_bytes = text.tokenizer->MaxTextBytes(static_cast<int64_t>(context_tokens));
  EncodeOptions options;
  options.add_special_tokens = request.add_special_tokens;
  options.parse_special_tokens = request.parse_special_tokens;
  options.max_text_bytes = std::min(options.max_text_bytes, max_text_bytes);
  if (prompt.size() > options.max_text_bytes) return TooLong(prompt.size(), context_tokens);
  return EncodePrompt(text, prompt, options);
}

}  // namespace

Result<std::vector<int32_t>> PromptTokens(const TextRequest& request, size_t context_tokens) {
  if (const Json* messages = std::get_if<Json>(&request.prompt)) {
    return FromMessages(request, *messages, context_tokens);
  }
  if (const auto* prompt = std::get_if<std::string>(&request.prompt)) {
    return FromText(request, *prompt, context_tokens);
  }
  return std::get<std::vector<int32_t>>(request.prompt);
}

}  // namespace df
