// From the body of a chat or completion request to running text streams and the shape of their answer.
#ifndef DELTAFOLD_SERVER_GENERATION_H_
#define DELTAFOLD_SERVER_GENERATION_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/answer_format.h"
#include "server/error_map.h"
#include "server/openai_types.h"
#include "server/text_service.h"

namespace df::server {

// A request whose streams run; destroyed = cancelled.
struct PreparedGeneration {
  AnswerFormat format;
  std::vector<std::unique_ptr<TextStream>> streams;  // one a choice
  std::string variant_name;                          // registered, for metrics and log
  bool stream = false;
  bool include_usage = false;
};
using Prepared = std::variant<ApiError, PreparedGeneration>;

struct PrepareContext {
  std::string unique_id;  // hexadecimal; ids are "chatcmpl-" or "cmpl-" and this
  int64_t created_unix = 0;
  std::function<void()> wake;  // handed to every stream
};

// Thread-safe, slow (they tokenise): called on a worker. The body is freed as soon as it is parsed.
Prepared PrepareChat(TextService& service, std::string body, const PrepareContext& context);
Prepared PrepareCompletion(TextService& service, std::string body, const PrepareContext& context);

// The part both share. Of a request its prompt and what belongs to it are set; the rest comes from `fields`.
struct StartPlan {
  const RouteWords& words;
  GenerationFields fields;
  std::vector<TextRequest> requests;
  std::string param;           // the field a refused prompt stands in
  std::string logprobs_param;  // the field that says how many of the likeliest tokens are wanted
};
// Starts all or none: prompts that do not fit are refused before the engine hears of any.
Prepared StartStreams(TextService& service, StartPlan plan, const PrepareContext& context);

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_GENERATION_H_
