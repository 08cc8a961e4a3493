// OpenAI's error object and the one table from our failures to HTTP.
#ifndef DELTAFOLD_SERVER_ERROR_MAP_H_
#define DELTAFOLD_SERVER_ERROR_MAP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/json_fwd.h"
#include "base/status.h"
#include "server/http_message.h"

namespace df::server {

// {"error": {"message", "type", "param", "code"}}; `code` strings are stable (docs/api.md).
struct ApiError {
  int status = 400;
  std::string type = "invalid_request_error";
  std::string message;
  std::string param;          // "" = null
  std::string code;           // "" = null
  int64_t retry_after_s = 1;  // with 429 and 503
};

Json ErrorBody(const ApiError& error);
// With Retry-After on 429 and 503, WWW-Authenticate on 401.
HttpResponse ErrorResponse(const ApiError& error);

// `param` of the request `status` is about, where known. Messages of kIo and kInternal may hold paths and stay here:
// the client gets a general sentence.
ApiError FromStatus(const Status& status, std::string param = "");

// `message` for clients: paths are cut down to their last part, `directory` ("" = none) and what leads to it is left
// out.
std::string WithoutPaths(std::string message, const std::string& directory = "");

// How a generation that was accepted has failed. What is wrong with a variant's files is no fault of this request: 503
// with the cause, as "generation_gone" when they were changed in place.
ApiError GenerationFailure(const Status& status, std::string_view model);

// A name or path out of a request, as messages repeat it: at most 100 bytes.
std::string Shortened(std::string_view text);

// A field that is wrong in itself (type, range, ...).
ApiError InvalidField(std::string_view param, std::string_view expected);
// A field whose feature is not there.
ApiError UnsupportedField(std::string_view param, std::string_view detail = "");
ApiError ModelNotFound(std::string_view model);
ApiError InvalidApiKey();
ApiError RouteNotFound();
ApiError ShuttingDown();
// A refusal below the routes: broken HTTP, limits of size and time, overload.
ApiError TransportError(int status, std::string message);

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_ERROR_MAP_H_
