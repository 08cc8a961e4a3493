// Fixtures of text_test: tests/data/text (made by its make_fixtures.py with the reference implementations).
#ifndef DELTAFOLD_TEXT_TEXT_FIXTURE_H_
#define DELTAFOLD_TEXT_TEXT_FIXTURE_H_

#include <memory>
#include <string>

#include "base/atomic_file.h"
#include "base/json.h"
#include "testing/status_matchers.h"
#include "text/chat_template.h"
#include "text/model_text.h"
#include "text/tokenizer.h"

namespace df::testing {

inline std::string TestPath(const std::string& name) { return DELTAFOLD_SOURCE_DIR "/tests/" + name; }
inline std::string TextDataPath(const std::string& name) { return TestPath("data/text/" + name); }

inline std::string ReadTextData(const std::string& name) {
  return ValueOrDie(ReadFileBounded(TextDataPath(name), size_t{16} << 20));
}
inline Json ReadJsonData(const std::string& name) { return ValueOrDie(ReadJsonFile(TextDataPath(name))); }

inline std::shared_ptr<const Tokenizer> LoadTestTokenizer(const std::string& name) {
  return ValueOrDie(Tokenizer::Load(TextDataPath(name + ".json")));
}

inline const char* const kTestTokenizers[] = {"qwen_like",        "llama3_like", "llama2_like", "mistral_like",
                                              "odd_added_tokens", "word_piece",  "no_decoder"};

inline std::shared_ptr<const ChatTemplate> CompileTestTemplate(const std::string& source,
                                                               const Json& special_tokens = Json::object()) {
  return ValueOrDie(ChatTemplate::Compile({.templates = {{"default", source}}, .special_tokens = special_tokens}));
}

}  // namespace df::testing

#endif  // DELTAFOLD_TEXT_TEXT_FIXTURE_H_
