// Questions with one right answer, and running text: from files to token ids.
#ifndef DELTAFOLD_EVAL_QUESTIONS_H_
#define DELTAFOLD_EVAL_QUESTIONS_H_

#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "eval/scorer.h"
#include "text/model_text.h"

namespace df::eval {

struct Question {
  Json messages;
  std::string answer;
};

inline constexpr size_t kMaxTaskBytes = size_t{256} << 20;

// A JSON object a line: {"messages": [{"role": ..., "content": ...}, ...], "answer": "..."}, other keys are left
// alone; the first `n_items` lines, 0 = all. The only errors are the file's, kResourceExhausted (above kMaxTaskBytes)
// and kCorrupt naming the line.
Result<std::vector<Question>> ReadQuestions(const std::string& path, size_t n_items);

// Prompt and reference answer as tokens: the messages by the chat template with its generation prompt, the answer
// tokenised by itself, then the token that closes it. The scored tokens are the answer's and the closing one.
struct AskedQuestion {
  std::vector<int32_t> prompt;
  ScoredSequence reference;
};
// `closing`: < 0 = none. Errors of EncodeChat and Encode, naming the question's number.
Result<std::vector<AskedQuestion>> Tokenise(const ModelText& text, const std::vector<Question>& questions,
                                            int32_t closing);

// The token that ends an answer: what the tokenizer calls its end, else the first that ends generation; -1 = none.
int32_t ClosingToken(const ModelText& text, const std::vector<int32_t>& eos_ids);

struct WindowOptions {
  size_t window_tokens = 512;
  size_t max_tokens = 16384;  // of the text, from its beginning
};
// Consecutive windows, none overlapping, without BOS; the first token of each is not scored. A rest shorter than a
// window is left out, unless the whole text is shorter than one. The only errors are Encode's and kInvalidArgument (a
// text of fewer than 2 tokens, a window of fewer).
Result<std::vector<ScoredSequence>> Windows(const ModelText& text, const std::string& content,
                                            const WindowOptions& options);

}  // namespace df::eval

#endif  // DELTAFOLD_EVAL_QUESTIONS_H_
