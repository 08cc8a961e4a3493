// Messages to the text that the model was trained on, by the model's own Jinja template (minijinja, over rust/).
//
// Input:  a template (untrusted), messages, tools and extra variables (untrusted).
// Output: the rendered text; the same as Hugging Face's apply_chat_template(tokenize=False).
// Called by: text/prompt.
#ifndef DELTAFOLD_TEXT_CHAT_TEMPLATE_H_
#define DELTAFOLD_TEXT_CHAT_TEMPLATE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/status.h"

struct dft_template;

namespace df {

// A source and, in scope for it, the tokens that tokenizer_config.json names (bos_token, eos_token, ...: strings).
struct ChatTemplateSource {
  std::vector<std::pair<std::string, std::string>> templates;  // name ("default", "tool_use", ...), Jinja source
  Json special_tokens = Json::object();
};

struct RenderOptions {
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // leave the last message open, for the model to go on
  Json tools = nullptr;                 // array of tool definitions, or null
  Json kwargs = Json::object();         // further variables of the request; reserved names are refused
  size_t max_output_bytes = size_t{16} << 20;
  std::optional<int64_t> now_unix_s = std::nullopt;  // for strftime_now; the real time by default
};

// Immutable and thread-safe.
class ChatTemplate {
 public:
  // The only errors are kResourceExhausted (source above 256 KiB) and kCorrupt (does not compile; names the line).
  static Result<std::shared_ptr<const ChatTemplate>> Compile(ChatTemplateSource source);
  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // `messages`: array of objects. Members that are null are left out; `reasoning_content`, `thinking` and `reasoning`
  // stand for each other. With tools the template "tool_use" is taken where there is one, else "default".
  // The only errors are kInvalidArgument (messages, tools or kwargs of a wrong form, a reserved name in kwargs,
  // raise_exception of the template, a failure inside it) and kResourceExhausted (steps, depth or output; named).
  Result<std::string> Render(const Json& messages, const RenderOptions& options = {}) const;

  // As Render, with strings into which the caller has put `mark` (a private-use character): it passes through tojson
  // and the like unescaped.
  Result<std::string> RenderMarked(const Json& messages, const RenderOptions& options, char32_t mark) const;

  // The variables bos_token, eos_token, ... that the templates see.
  const Json& special_tokens() const { return source_.special_tokens; }
  // Does any source contain the text of this private-use character?
  bool Writes(char32_t character) const;

 private:
  ChatTemplate() = default;
  Result<const dft_template*> Choose(const RenderOptions& options) const;

  ChatTemplateSource source_;
  std::vector<dft_template*> handles_;  // owned; one per source_.templates
};

}  // namespace df

#endif  // DELTAFOLD_TEXT_CHAT_TEMPLATE_H_
