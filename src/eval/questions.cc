#include "eval/questions.h"

#include <algorithm>

#include "base/atomic_file.h"
#include "text/prompt.h"

namespace df::eval {
namespace {

// At most this much of a text is tokenised for a token that is wanted: real texts have 3 to 5 bytes a token.
constexpr size_t kBytesAToken = 64;

Result<Question> ReadQuestion(std::string_view line) {
  DF_ASSIGN_OR_RETURN(Json json, ParseJson(line));
  const Json* messages = JsonMemberOrNull(json, "messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    return Corrupt("\"messages\" must be a list of messages");
  }
  Question question = {.messages = *messages, .answer = {}};
  const Result<std::string> answer = JsonString(json, "answer");
  if (!answer.ok()) return Corrupt(answer.status().message());
  question.answer = *answer;
  return question;
}

Result<AskedQuestion> TokeniseOne(const ModelText& text, const Question& question, int32_t closing) {
  AskedQuestion asked;
  DF_ASSIGN_OR_RETURN(asked.prompt, EncodeChat(text, question.messages));
  DF_ASSIGN_OR_RETURN(const std::vector<int32_t> answer, text.tokenizer->Encode(question.answer));
  asked.reference.tokens = asked.prompt;
  asked.reference.tokens.insert(asked.reference.tokens.end(), answer.begin(), answer.end());
  if (closing >= 0) asked.reference.tokens.push_back(closing);
  asked.reference.first_scored = asked.prompt.size();
  if (asked.prompt.empty()) return InvalidArgument("the prompt is empty");
  return asked;
}

// `content` up to about `max_bytes`, ending with a whole character.
std::string_view Beginning(const std::string& content, size_t max_bytes) {
  if (content.size() <= max_bytes) return content;
  size_t end = max_bytes;
  while (end > 0 && (static_cast<uint8_t>(content[end]) & 0xC0) == 0x80) --end;
  return std::string_view(content).substr(0, end);
}

}  // namespace

Result<std::vector<Question>> ReadQuestions(const std::string& path, size_t n_items) {
  DF_ASSIGN_OR_RETURN(const std::string content, ReadFileBounded(path, kMaxTaskBytes));
  std::vector<Question> questions;
  size_t number = 0;
  for (size_t begin = 0; begin < content.size() && (n_items == 0 || questions.size() < n_items);) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string_view line = std::string_view(content).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    Result<Question> question = ReadQuestion(line);
    if (!question.ok()) return Corrupt(path + " line " + std::to_string(number) + ": " + question.status().message());
    questions.push_back(*std::move(question));
  }
  if (questions.empty()) return Corrupt(path + " holds no question");
  return questions;
}

int32_t ClosingToken(const ModelText& text, const std::vector<int32_t>& eos_ids) {
  if (text.eos_id) return *text.eos_id;
  return eos_ids.empty() ? -1 : eos_ids.front();
}

Result<std::vector<AskedQuestion>> Tokenise(const ModelText& text, const std::vector<Question>& questions,
                                            int32_t closing) {
  std::vector<AskedQuestion> asked;
  for (const Question& question : questions) {
    Result<AskedQuestion> one = TokeniseOne(text, question, closing);
    if (!one.ok()) return one.status().Annotate("question " + std::to_string(asked.size() + 1));
    asked.push_back(*std::move(one));
  }
  return asked;
}

Result<std::vector<ScoredSequence>> Windows(const ModelText& text, const std::string& content,
                                            const WindowOptions& options) {
  if (options.window_tokens < 2) return InvalidArgument("a window must have at least 2 tokens");
  const std::string_view beginning = Beginning(content, kBytesAToken * options.max_tokens);
  EncodeOptions encode;
  encode.max_text_bytes = std::max(encode.max_text_bytes, beginning.size());
  DF_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, text.tokenizer->Encode(beginning, encode));
  if (tokens.size() > options.max_tokens) tokens.resize(options.max_tokens);
  if (tokens.size() < 2) return InvalidArgument("the text has fewer than 2 tokens");
  const size_t window = std::min(options.window_tokens, tokens.size());
  std::vector<ScoredSequence> windows;
  for (size_t begin = 0; begin + window <= tokens.size(); begin += window) {
    const auto at = tokens.begin() + static_cast<ptrdiff_t>(begin);
    windows.push_back({.tokens = {at, at + static_cast<ptrdiff_t>(window)}, .first_scored = 1});
  }
  return windows;
}

}  // namespace df::eval
