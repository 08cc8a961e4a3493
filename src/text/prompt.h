// Requests to prompt token ids. User content never becomes a control token, and BOS stands in front exactly once.
//
// Input:  a ModelText and either messages (chat) or plain text (completion), both untrusted.
// Output: the prompt's token ids: for ordinary content exactly those of the reference implementation.
// Called by: engine/session.
//
// How a chat stays safe: wherever a string of the request could complete a special token's text, one character that
// occurs nowhere in the request is put inside it before the template is rendered. After rendering these characters are
// taken out again and their places tell the tokenizer which matches of special tokens are not the template's own.
#ifndef DELTAFOLD_TEXT_PROMPT_H_
#define DELTAFOLD_TEXT_PROMPT_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/chat_template.h"
#include "text/model_text.h"

namespace df {

struct ChatPromptOptions {
  RenderOptions render = {};
  EncodeOptions encode = {};  // add_special_tokens and parse_special_tokens are not looked at: the template decides
};

// Besides what the template writes, BOS is put in front when the tokenizer puts it before plain text and the template
// did not. The arguments of an assistant's tool calls may be JSON in a string, as OpenAI has them: templates get the
// value. The only errors are kFailedPrecondition (the model has no chat template), kInvalidArgument (arguments that are
// no JSON, named), those of ChatTemplate::Render and those of Tokenizer::Encode.
Result<std::vector<int32_t>> EncodeChat(const ModelText& text, const Json& messages,
                                        const ChatPromptOptions& options = {});

// Plain text, with what the tokenizer adds by itself when options.add_special_tokens; a BOS that `prompt` spells out
// (options.parse_special_tokens) is not doubled. The only errors are those of Tokenizer::Encode.
Result<std::vector<int32_t>> EncodePrompt(const ModelText& text, std::string_view prompt,
                                          EncodeOptions options = {.add_special_tokens = true});

}  // namespace df

#endif  // DELTAFOLD_TEXT_PROMPT_H_
