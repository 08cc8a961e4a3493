#include "server/error_map.h"

#include <algorithm>

#include "base/json.h"
#include "engine/fair_queue.h"
#include "store/variant_source.h"

namespace df::server {
namespace {

struct Row {
  StatusCode from;
  int status;
  const char* type;
  const char* code;
};

// The one table. Codes that OpenAI has are OpenAI's.
constexpr Row kTable[] = {
    {StatusCode::kInvalidArgument, 400, "invalid_request_error", "invalid_value"},
    {StatusCode::kFailedPrecondition, 400, "invalid_request_error", "failed_precondition"},
    {StatusCode::kUnsupported, 400, "invalid_request_error", "unsupported_parameter"},
    {StatusCode::kCorrupt, 400, "invalid_request_error", "invalid_value"},
    {StatusCode::kNotFound, 404, "invalid_request_error", "not_found"},
    {StatusCode::kResourceExhausted, 429, "rate_limit_error", "rate_limit_exceeded"},
    {StatusCode::kUnavailable, 503, "server_error", "unavailable"},
    {StatusCode::kCancelled, 503, "server_error", "cancelled"},
    {StatusCode::kDeadlineExceeded, 504, "server_error", "timeout"},
    {StatusCode::kIo, 500, "server_error", "internal_error"},
    {StatusCode::kInternal, 500, "server_error", "internal_error"},
};

// Names out of a request are repeated in messages up to this length.
constexpr size_t kMaxEchoBytes = 100;

Json OrNull(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

void ReplaceAll(const std::string& from, std::string_view to, std::string& text) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

// Whether a word of a message is a path: a model's name may hold slashes as well.
bool IsPath(std::string_view word) {
  if (word.find('/') == std::string_view::npos) return false;
  if (word.starts_with('/') || word.starts_with("./") || word.starts_with("../") || word.starts_with("~/")) return true;
  return word.ends_with(".json") || word.ends_with(".safetensors") || word.ends_with(".jinja") ||
         word.ends_with(".bin");
}

// Why, without what the engine and the code say as well.
std::string_view CauseOf(std::string_view message) {
  const size_t at = message.find(kCannotBeServed);
  if (at != std::string_view::npos) message.remove_prefix(at + kCannotBeServed.size());
  const bool repeats_code =
      message.starts_with(kGenerationGone) && message.substr(kGenerationGone.size()).starts_with(": ");
  return repeats_code ? message.substr(kGenerationGone.size() + 2) : message;
}

}  // namespace

Json ErrorBody(const ApiError& error) {
  Json inner = Json::object();
  inner["message"] = error.message;
  inner["type"] = error.type;
  inner["param"] = OrNull(error.param);
  inner["code"] = OrNull(error.code);
  Json body = Json::object();
  body["error"] = std::move(inner);
  return body;
}

HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response{.status = error.status, .headers = {}, .body = DumpJson(ErrorBody(error))};
  if (error.status == 429 || error.status == 503) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  }
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

ApiError FromStatus(const Status& status, std::string param) {
  for (const Row& row : kTable) {
    if (row.from != status.code()) continue;
    const bool ours = row.status == 500;
    return {.status = row.status,
            .type = row.type,
            .message = ours ? "the server failed on this request; its log has the cause" : status.message(),
            .param = row.status == 400 ? std::move(param) : "",
            .code = row.code};
  }
  return FromStatus(Internal(status.message()));
}

std::string WithoutPaths(std::string message, const std::string& directory) {
  if (directory.size() > 1) {
    ReplaceAll(directory + "/", "", message);
    ReplaceAll(directory, "its directory", message);
  }
  constexpr std::string_view kEnds = " \t\n\"'`:,;()[]<>=";
  std::string clean;
  for (size_t from = 0; from < message.size();) {
    const size_t end = std::min(message.find_first_of(kEnds, from), message.size());
    std::string_view word = std::string_view(message).substr(from, end - from);
    if (IsPath(word)) word.remove_prefix(word.rfind('/') + 1);
    clean += word;
    if (end < message.size()) clean += message[end];
    from = end + 1;
  }
  return clean;
}

ApiError GenerationFailure(const Status& status, std::string_view model) {
  switch (status.code()) {
    case StatusCode::kNotFound:
    case StatusCode::kUnsupported:
    case StatusCode::kCorrupt:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kResourceExhausted:
    case StatusCode::kUnavailable:
    case StatusCode::kIo:
      return {.status = 503,
              .type = "server_error",
              .message = "The model `" + Shortened(model) +
                         "` cannot answer now: " + WithoutPaths(std::string(CauseOf(status.message()))),
              .param = "",
              .code = IsGenerationGone(status) ? std::string(kGenerationGone) : "model_unavailable"};
    default: return FromStatus(status);
  }
}

std::string Shortened(std::string_view text) {
  if (text.size() <= kMaxEchoBytes) return std::string(text);
  return std::string(text.substr(0, kMaxEchoBytes)) + "...";
}

ApiError InvalidField(std::string_view param, std::string_view expected) {
  return {.message = Shortened(param) + " must be " + std::string(expected),
          .param = Shortened(param),
          .code = "invalid_value"};
}

ApiError UnsupportedField(std::string_view param, std::string_view detail) {
  std::string message = Shortened(param) + " is not supported by this server";
  if (!detail.empty()) message += ": " + std::string(detail);
  return {.message = std::move(message), .param = Shortened(param), .code = "unsupported_parameter"};
}

ApiError ModelNotFound(std::string_view model) {
  return {.status = 404,
          .message = "The model `" + Shortened(model) + "` does not exist; GET /v1/models lists what is served",
          .param = "model",
          .code = "model_not_found"};
}

ApiError InvalidApiKey() {
  return {.status = 401,
          .message = "Missing or wrong API key; send it as `Authorization: Bearer KEY`",
          .param = "",
          .code = "invalid_api_key"};
}

ApiError RouteNotFound() {
  return {.status = 404, .message = "There is no such route; docs/api.md lists them", .param = "", .code = "not_found"};
}

ApiError ShuttingDown() {
  return {.status = 503,
          .type = "server_error",
          .message = "The server is shutting down",
          .param = "",
          .code = "shutting_down"};
}

ApiError TransportError(int status, std::string message) {
  const bool ours = status >= 500;
  return {.status = status,
          .type = ours            ? "server_error"
                  : status == 429 ? "rate_limit_error"
                                  : "invalid_request_error",
          .message = std::move(message),
          .param = "",
          .code = ours            ? "overloaded"
                  : status == 429 ? "rate_limit_exceeded"
                                  : "invalid_http"};
}

}  // namespace df::server
