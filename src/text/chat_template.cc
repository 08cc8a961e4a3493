#include "text/chat_template.h"

#include <algorithm>
#include <array>
#include <ctime>

#include "text/border.h"
#include "text/private_use.h"

namespace df {
namespace {

// The largest known template has 40 KB.
constexpr size_t kMaxSourceBytes = size_t{256} << 10;

// What the template is given by us, and what its environment defines.
constexpr std::array<std::string_view, 16> kReservedNames = {"messages",
                                                             "tools",
                                                             "add_generation_prompt",
                                                             "continue_final_message",
                                                             "bos_token",
                                                             "eos_token",
                                                             "unk_token",
                                                             "sep_token",
                                                             "pad_token",
                                                             "cls_token",
                                                             "mask_token",
                                                             "additional_special_tokens",
                                                             "raise_exception",
                                                             "namespace",
                                                             "strftime_now",
                                                             "chat_template"};

// The names under which a message's reasoning is passed, the first being the one that templates read.
constexpr std::array<std::string_view, 3> kReasoningNames = {"reasoning_content", "thinking", "reasoning"};

Status CheckOptions(const RenderOptions& options) {
  if (!options.tools.is_null() && !options.tools.is_array()) return InvalidArgument("\"tools\" must be an array");
  if (!options.kwargs.is_object()) return InvalidArgument("chat_template_kwargs must be an object");
  for (const auto& [name, value] : options.kwargs.items()) {
    if (std::find(kReservedNames.begin(), kReservedNames.end(), name) != kReservedNames.end()) {
      return InvalidArgument("chat_template_kwargs may not set \"" + name + "\": the name is reserved");
    }
  }
  if (options.add_generation_prompt && options.continue_final_message) {
    return InvalidArgument("add_generation_prompt and continue_final_message exclude each other");
  }
  return Status::Ok();
}

// Without members that are null (templates would print them), and with the reasoning under the names that templates
// read: as Hugging Face hands messages to a template.
Result<Json> NormalizeMessages(const Json& messages) {
  if (!messages.is_array()) return InvalidArgument("\"messages\" must be an array");
  Json normalized = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    const Json& message = messages[i];
    if (!message.is_object()) return InvalidArgument("messages[" + std::to_string(i) + "] must be an object");
    Json copy = Json::object();
    for (const auto& [name, value] : message.items()) {
      if (!value.is_null()) copy[name] = value;
    }
    for (const std::string_view name : kReasoningNames) {
      const Json* reasoning = JsonMemberOrNull(copy, name);
      if (reasoning == nullptr) continue;
      const Json text = *reasoning;
      copy["reasoning_content"] = text;
      if (!copy.contains("thinking")) copy["thinking"] = text;
      break;
    }
    normalized.push_back(std::move(copy));
  }
  return normalized;
}

// Puts `tag` behind the text of the last message.
Status TagFinalMessage(Json& messages, const std::string& tag) {
  if (messages.empty()) return InvalidArgument("continue_final_message needs a message to continue");
  Json& message = messages.back();
  Json* content = message.contains("content") ? &message["content"] : nullptr;
  if (content != nullptr && content->is_array()) {
    Json* last_text = nullptr;
    for (Json& part : *content) {
      if (part.is_object() && part.contains("text") && part["text"].is_string()) last_text = &part["text"];
    }
    content = last_text;
  }
  if (content == nullptr || !content->is_string()) {
    return InvalidArgument("continue_final_message: the last message has no text content to continue");
  }
  content->get_ref<std::string&>() += tag;
  return Status::Ok();
}

// Cuts `rendered` where the tag stands. The tag ends in a space: where the template trimmed that, it would have trimmed
// the message too, so the trailing space before the tag goes as well.
Result<std::string> CutAtTag(std::string rendered, const std::string& mark) {
  const size_t at = rendered.rfind(mark);
  if (at == std::string::npos) {
    return InvalidArgument("continue_final_message: the chat template leaves the last message out");
  }
  const bool kept_space = at + mark.size() < rendered.size() && rendered[at + mark.size()] == ' ';
  rendered.resize(at);
  if (!kept_space) rendered.resize(rendered.find_last_not_of(" \t\n\r\v\f") + 1);
  return rendered;
}

}  // namespace

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::Compile(ChatTemplateSource source) {
  if (source.templates.empty()) return Corrupt("no chat template given");
  const std::shared_ptr<ChatTemplate> compiled(new ChatTemplate());
  for (const auto& [name, text] : source.templates) {
    if (text.size() > kMaxSourceBytes) {
      return ResourceExhausted("chat template \"" + name + "\" has " + std::to_string(text.size()) +
                               " bytes, at most " + std::to_string(kMaxSourceBytes) + " are accepted");
    }
    dft_template* handle = nullptr;
    RustBuffer error;
    const dft_code code = dft_template_new(RustBytes(text), text.size(), &handle, error.out());
    if (code != DFT_OK) return RustStatus(code, error).Annotate("chat template \"" + name + "\"");
    compiled->handles_.push_back(handle);
  }
  compiled->source_ = std::move(source);
  return std::shared_ptr<const ChatTemplate>(compiled);
}

ChatTemplate::~ChatTemplate() {
  for (dft_template* handle : handles_) dft_template_free(handle);
}

Result<const dft_template*> ChatTemplate::Choose(const RenderOptions& options) const {
  const auto& all = source_.templates;
  const auto named = [&](std::string_view name) -> const dft_template* {
    const auto at = std::find_if(all.begin(), all.end(), [&](const auto& entry) { return entry.first == name; });
    return at == all.end() ? nullptr : handles_[static_cast<size_t>(at - all.begin())];
  };
  const bool with_tools = options.tools.is_array() && !options.tools.empty();
  if (const dft_template* handle = with_tools ? named("tool_use") : nullptr; handle != nullptr) return handle;
  if (const dft_template* handle = named("default"); handle != nullptr) return handle;
  if (all.size() == 1) return static_cast<const dft_template*>(handles_.front());
  return InvalidArgument("the model has several chat templates and none is called \"default\"");
}

bool ChatTemplate::Writes(char32_t character) const {
  const std::string text = PrivateUseText(character);
  return std::any_of(source_.templates.begin(), source_.templates.end(),
                     [&](const auto& entry) { return entry.second.find(text) != std::string::npos; });
}

Result<std::string> ChatTemplate::Render(const Json& messages, const RenderOptions& options) const {
  return RenderMarked(messages, options, 0);
}

Result<std::string> ChatTemplate::RenderMarked(const Json& messages, const RenderOptions& options,
                                               char32_t mark) const {
  DF_RETURN_IF_ERROR(CheckOptions(options));
  DF_ASSIGN_OR_RETURN(const dft_template* handle, Choose(options));
  Json context = source_.special_tokens;
  DF_ASSIGN_OR_RETURN(context["messages"], NormalizeMessages(messages));
  context["tools"] = options.tools.empty() ? Json(nullptr) : options.tools;
  context["documents"] = nullptr;
  context["add_generation_prompt"] = options.add_generation_prompt;
  for (const auto& [name, value] : options.kwargs.items()) context[name] = value;

  std::string tag;
  if (options.continue_final_message) {
    PrivateUseCensus census;
    census.Add(DumpJson(context));
    for (const auto& entry : source_.templates) census.Add(entry.second);
    if (mark != 0) census.Add(mark);
    const std::optional<char32_t> unused = census.UnusedOrNull();
    if (!unused) return InvalidArgument("the messages use every private-use character");
    tag = PrivateUseText(*unused);
    DF_RETURN_IF_ERROR(TagFinalMessage(context["messages"], tag + " "));
  }

  const std::string json = DumpJson(context);
  const dft_render_options rust_options = {
      .max_output_bytes = options.max_output_bytes,
      .now_unix_s = options.now_unix_s.value_or(static_cast<int64_t>(std::time(nullptr))),
      .sentinel = mark};
  RustBuffer out;
  RustBuffer error;
  DF_RETURN_IF_ERROR(RustStatus(
      dft_template_render(handle, RustBytes(json), json.size(), &rust_options, out.out(), error.out()), error));
  std::string rendered(out.text());
  if (tag.empty()) return rendered;
  return CutAtTag(std::move(rendered), tag);
}

}  // namespace df
