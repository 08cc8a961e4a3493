#include "text/prompt.h"

#include <optional>
#include <utility>

#include "text/control_text.h"
#include "text/private_use.h"

namespace df {
namespace {

// The reading limits of `arguments`: as deep as a request's JSON may be at all.
constexpr JsonLimits kArgumentLimits = {.max_depth = 64, .max_bytes = size_t{16} << 20};

// OpenAI's `arguments` are JSON in a string, templates want the value: as vLLM, {} for none.
Status ParseArguments(Json& function) {
  Json& arguments = function["arguments"];
  if (arguments.is_null() || (arguments.is_string() && arguments.get_ref<const std::string&>().empty())) {
    arguments = Json::object();
  }
  if (!arguments.is_string()) return Status::Ok();
  Result<Json> parsed = ParseJson(arguments.get_ref<const std::string&>(), kArgumentLimits);
  if (!parsed.ok()) return InvalidArgument("must hold JSON: " + parsed.status().message());
  arguments = *std::move(parsed);
  return Status::Ok();
}

Status ParseToolArguments(Json& messages) {
  if (!messages.is_array()) return Status::Ok();  // the template's side refuses it
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto calls = messages[i].is_object() ? messages[i].find("tool_calls") : messages[i].end();
    if (calls == messages[i].end() || !calls->is_array() || messages[i].value("role", Json()) != "assistant") continue;
    for (size_t k = 0; k < calls->size(); ++k) {
      Json& call = (*calls)[k];
      if (!call.is_object() || !call.contains("function") || !call["function"].is_object()) continue;
      const Status status = ParseArguments(call["function"]);
      if (status.ok()) continue;
      return status.Annotate("messages[" + std::to_string(i) + "].tool_calls[" + std::to_string(k) +
                             "].function.arguments");
    }
  }
  return Status::Ok();
}

// The id that this tokenizer puts in front of every text, if it is the model's BOS.
std::optional<int32_t> LeadingBosOrNull(const ModelText& text) {
  const std::vector<int32_t>& prefix = text.tokenizer->prefix_ids();
  if (prefix.empty()) return std::nullopt;
  if (text.bos_id && *text.bos_id != prefix.front()) return std::nullopt;
  return prefix.front();
}

// BOS in front exactly once.
void LeadWithBos(int32_t bos, std::vector<int32_t>& ids) {
  size_t n_bos = 0;
  while (n_bos < ids.size() && ids[n_bos] == bos) ++n_bos;
  if (n_bos == 0) ids.insert(ids.begin(), bos);
  if (n_bos > 1) ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n_bos - 1));
}

Result<char32_t> UnusedMark(const ChatTemplate& chat_template, const Json& messages, const RenderOptions& options) {
  PrivateUseCensus census;
  for (const Json* part : {&messages, &options.tools, &options.kwargs, &chat_template.special_tokens()}) {
    census.Add(DumpJson(*part));
  }
  for (;;) {
    const std::optional<char32_t> mark = census.UnusedOrNull();
    if (!mark) return InvalidArgument("the messages use every private-use character");
    if (!chat_template.Writes(*mark)) return *mark;
    census.Add(*mark);
  }
}

}  // namespace

Result<std::vector<int32_t>> EncodeChat(const ModelText& text, const Json& messages, const ChatPromptOptions& options) {
  if (text.chat_template == nullptr) {
    return FailedPrecondition("the model has no chat template: give it a plain prompt, or add chat_template.jinja");
  }
  Json marked_messages = messages;
  DF_RETURN_IF_ERROR(ParseToolArguments(marked_messages));
  DF_ASSIGN_OR_RETURN(const char32_t mark, UnusedMark(*text.chat_template, marked_messages, options.render));
  const std::string mark_text = PrivateUseText(mark);
  RenderOptions render = options.render;
  text.control_text->Mark(marked_messages, mark_text);
  text.control_text->Mark(render.tools, mark_text);
  text.control_text->MarkVariables(render.kwargs, mark_text);

  Result<std::string> rendered = text.chat_template->RenderMarked(marked_messages, render, mark);
  if (!rendered.ok()) {
    return Status(rendered.status().code(), RemoveMarks(rendered.status().message(), mark_text).text);
  }
  const UnmarkedText unmarked = RemoveMarks(*rendered, mark_text);
  EncodeOptions encode = options.encode;
  encode.add_special_tokens = false;
  encode.parse_special_tokens = true;
  DF_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                      text.tokenizer->EncodeBroken(unmarked.text, unmarked.broken_at, encode));
  if (const std::optional<int32_t> bos = LeadingBosOrNull(text)) LeadWithBos(*bos, ids);
  return ids;
}

Result<std::vector<int32_t>> EncodePrompt(const ModelText& text, std::string_view prompt, EncodeOptions options) {
  DF_ASSIGN_OR_RETURN(std::vector<int32_t> ids, text.tokenizer->Encode(prompt, options));
  const std::optional<int32_t> bos = LeadingBosOrNull(text);
  if (bos && options.add_special_tokens) LeadWithBos(*bos, ids);
  return ids;
}

}  // namespace df
