#include "base/status.h"

#include <cstring>
#include <system_error>

namespace df {

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid_argument";
    case StatusCode::kNotFound: return "not_found";
    case StatusCode::kUnsupported: return "unsupported";
    case StatusCode::kCorrupt: return "corrupt";
    case StatusCode::kFailedPrecondition: return "failed_precondition";
    case StatusCode::kResourceExhausted: return "resource_exhausted";
    case StatusCode::kUnavailable: return "unavailable";
    case StatusCode::kCancelled: return "cancelled";
    case StatusCode::kDeadlineExceeded: return "deadline_exceeded";
    case StatusCode::kIo: return "io";
    case StatusCode::kInternal: return "internal";
  }
  return "unknown";
}

Status Status::Annotate(std::string_view context) const {
  if (ok()) return *this;
  return {code_, std::string(context) + ": " + message_};
}

Status InvalidArgument(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }
Status NotFound(std::string message) { return {StatusCode::kNotFound, std::move(message)}; }
Status Unsupported(std::string message) { return {StatusCode::kUnsupported, std::move(message)}; }
Status Corrupt(std::string message) { return {StatusCode::kCorrupt, std::move(message)}; }
Status FailedPrecondition(std::string message) { return {StatusCode::kFailedPrecondition, std::move(message)}; }
Status ResourceExhausted(std::string message) { return {StatusCode::kResourceExhausted, std::move(message)}; }
Status Unavailable(std::string message) { return {StatusCode::kUnavailable, std::move(message)}; }
Status Cancelled(std::string message) { return {StatusCode::kCancelled, std::move(message)}; }
Status DeadlineExceeded(std::string message) { return {StatusCode::kDeadlineExceeded, std::move(message)}; }
Status Internal(std::string message) { return {StatusCode::kInternal, std::move(message)}; }

Status IoError(std::string_view what, int error) {
  return {StatusCode::kIo, std::string(what) + ": " + std::generic_category().message(error)};
}

}  // namespace df
