// Greedy answers to many questions by many variants, together through the engine.
#ifndef DELTAFOLD_EVAL_ANSWERS_H_
#define DELTAFOLD_EVAL_ANSWERS_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "engine/session.h"

namespace df::eval {

struct Ask {
  std::shared_ptr<const Variant> variant;
  std::vector<int32_t> prompt;
  size_t max_tokens = 1;
};

// The text of each answer, in order: temperature 0, ended by the variant's end tokens (which are no text) or after
// max_tokens. At most the engine's queue is asked at once. `on_answer` (may be empty) is called after each answer with
// how many are there; false ends with kCancelled. The only errors are StartText's, those that end a request, naming the
// variant, and kCancelled.
Result<std::vector<std::string>> AnswerAll(Engine& engine, const std::vector<Ask>& asks,
                                           const std::function<bool(size_t n_done)>& on_answer);

}  // namespace df::eval

#endif  // DELTAFOLD_EVAL_ANSWERS_H_
