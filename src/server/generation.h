// From the body of a chat or completion request to running text streams and the shape of their answer.
#ifndef DELTAFOLD_SERVER_GENERATION_H_
#define DELTAFOLD_SERVER_GENERATION_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/error_map.h"
#include "server/openai_types.h"
#include "server/text_service.h"

namespace df::server {

struct ChoiceEnd {
  FinishReason finish = FinishReason::kStop;
  std::optional<std::string> stop_reason;
};

// How one route writes what the engine said. Immutable: pure functions of the request and their arguments.
class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;

  // Server-sent events, each complete.
  virtual std::string StartEvents(size_t n_choices) const = 0;  // before any text
  virtual std::string TextEvent(size_t choice, std::string_view text) const = 0;
  virtual std::string EndEvent(size_t choice, const ChoiceEnd& end) const = 0;
  virtual std::string UsageEvent(const Usage& usage) const = 0;

  struct WholeChoice {
    std::string text;
    ChoiceEnd end;
  };
  virtual std::string WholeBody(const std::vector<WholeChoice>& choices, const Usage& usage) const = 0;
};

// A request whose streams run; destroyed = cancelled.
struct PreparedGeneration {
  std::unique_ptr<AnswerFormat> format;
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

// Thread-safe, slow (they tokenise): called on a worker.
Prepared PrepareChat(TextService& service, std::string_view body, const PrepareContext& context);
Prepared PrepareCompletion(TextService& service, std::string_view body, const PrepareContext& context);

// The parts both share.
struct AnswerHead {
  std::string id;
  std::string object;
  int64_t created_unix = 0;
  std::string model;  // as the client wrote it
  std::string system_fingerprint;
};
// {"id", "object", "created", "model", "system_fingerprint"}
Json HeadJson(const AnswerHead& head);
Json UsageJson(const Usage& usage);
Json StopReasonJson(const ChoiceEnd& end);
// "stop" or "length".
std::string_view FinishText(FinishReason finish);

struct StartPlan {
  GenerationFields fields;
  std::vector<TextRequest> requests;
  std::string param;  // the field a refused prompt stands in
};
// Starts all or none.
Prepared StartStreams(TextService& service, StartPlan plan, const PrepareContext& context);

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_GENERATION_H_
