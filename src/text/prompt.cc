#include "text/prompt.h"

#include <optional>
#include <utility>

#include "text/control_text.h"
#include "text/private_use.h"

namespace df {
namespace {

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
  DF_ASSIGN_OR_RETURN(const char32_t mark, UnusedMark(*text.chat_template, messages, options.render));
  const std::string mark_text = PrivateUseText(mark);
  Json marked_messages = messages;
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
