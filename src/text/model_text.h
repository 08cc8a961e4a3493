// The text side of one model or variant: its tokenizer, its chat template and its special ids.
//
// Input:  a model directory (tokenizer.json, tokenizer_config.json, chat_template.jinja, additional_chat_templates/,
//         generation_config.json).
// Output: ModelText, shared by everything that turns requests of this model into token ids and ids into text.
// Called by: store (one per variant), engine/session, inspect.
#ifndef DELTAFOLD_TEXT_MODEL_TEXT_H_
#define DELTAFOLD_TEXT_MODEL_TEXT_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "text/tokenizer.h"

namespace df {

class ChatTemplate;
class ControlText;

// Immutable after loading, thread-safe; copies share the tables.
struct ModelText {
  std::shared_ptr<const Tokenizer> tokenizer = nullptr;         // never null
  std::shared_ptr<const ChatTemplate> chat_template = nullptr;  // null: this model has none
  std::shared_ptr<const ControlText> control_text = nullptr;    // never null: what user content must not become
  std::optional<int32_t> bos_id = std::nullopt;  // as tokenizer_config.json names them; absent when it names none
  std::optional<int32_t> eos_id = std::nullopt;
  std::optional<int32_t> pad_id = std::nullopt;
  std::vector<int32_t> stop_ids = {};  // ascending: eos_id and the eos_token_id of generation_config.json
};

// Reads what `directory` holds; what it lacks is taken from `base` (null: none): the tokenizer, the chat template, and
// the special ids and stop ids, each on its own. A tokenizer.json with the bytes of the base's shares its tables.
// Template files, chat_template.jinja ("default") and additional_chat_templates/NAME.jinja, stand in for those that
// tokenizer_config.json holds, all together, as in the reference.
// The only errors are kNotFound (no tokenizer.json and no base), those of HasFile, Tokenizer::Load and
// ChatTemplate::Compile, and kCorrupt (tokenizer_config.json or generation_config.json; a named special token that the
// tokenizer lacks).
// `load_tokenizer` reads the file of a tokenizer (`known`: the base's, or null); empty: Tokenizer::Load does.
using TokenizerLoader = std::function<Result<std::shared_ptr<const Tokenizer>>(const std::string& path,
                                                                               std::shared_ptr<const Tokenizer> known)>;
Result<ModelText> LoadModelText(const std::string& directory, const ModelText* base = nullptr,
                                const TokenizerLoader& load_tokenizer = {});

}  // namespace df

#endif  // DELTAFOLD_TEXT_MODEL_TEXT_H_
