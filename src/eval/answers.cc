#include "eval/answers.h"

#include <algorithm>
#include <deque>

namespace df::eval {
namespace {

// Enough for full steps, whatever the engine's own limit of running sequences.
constexpr size_t kMaxInFlight = 256;

Result<std::unique_ptr<TextStream>> Start(Engine& engine, const Ask& ask, size_t number) {
  TextRequest request;
  request.id = "eval-" + std::to_string(number);
  request.variant = ask.variant;
  request.prompt = ask.prompt;
  request.params.temperature = 0;
  request.params.max_tokens = ask.max_tokens;
  auto stream = StartText(engine, std::move(request), {});
  if (!stream.ok()) return stream.status().Annotate(ask.variant->name);
  return stream;
}

Result<std::string> Await(TextStream& stream, const Ask& ask) {
  std::string text;
  for (;;) {
    for (const TextDelta& delta : stream.TakeAllBlocking()) {
      text += delta.text;
      if (!delta.finish) continue;
      if (!delta.status.ok()) return delta.status.Annotate(ask.variant->name);
      return text;
    }
  }
}

}  // namespace

Result<std::vector<std::string>> AnswerAll(Engine& engine, const std::vector<Ask>& asks,
                                           const std::function<bool(size_t n_done)>& on_answer) {
  const size_t most = std::max<size_t>(1, std::min(kMaxInFlight, engine.options().max_queued_requests));
  std::vector<std::string> answers;
  std::deque<std::unique_ptr<TextStream>> open;  // of asks[answers.size()] and those after it
  size_t n_started = 0;
  while (answers.size() < asks.size()) {
    while (n_started < asks.size() && open.size() < most) {
      DF_ASSIGN_OR_RETURN(open.emplace_back(), Start(engine, asks[n_started], n_started));
      ++n_started;
    }
    DF_ASSIGN_OR_RETURN(answers.emplace_back(), Await(*open.front(), asks[answers.size()]));
    open.pop_front();
    if (on_answer && !on_answer(answers.size())) return Status(StatusCode::kCancelled, "interrupted");
  }
  return answers;
}

}  // namespace df::eval
