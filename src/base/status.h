// Status and Result<T>: the one way in which the world's failures travel (our own bugs end in DF_CHECK).
//
// Input:  an error code and a message that names the object, what was expected, what was got and what to do.
// Output: a value that must be looked at; libraries never throw, print or exit across a folder.
// Called by: everything. Thread-compatible.
#ifndef DELTAFOLD_BASE_STATUS_H_
#define DELTAFOLD_BASE_STATUS_H_

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace df {

enum class StatusCode {
  kOk,
  kInvalidArgument,     // the caller's request is wrong (HTTP 400)
  kNotFound,            // a named thing does not exist (404)
  kUnsupported,         // a named feature that we do not implement (400)
  kCorrupt,             // bytes of a file break its format (400)
  kFailedPrecondition,  // sound, but does not fit: another base, wrong state (400)
  kResourceExhausted,   // a budget, queue or pool is full (429)
  kUnavailable,         // cannot be done now, may be later (503)
  kCancelled,           // the caller went away
  kDeadlineExceeded,    // took longer than allowed (408 / 504)
  kIo,                  // the operating system refused (message has its words)
  kInternal,            // a bug of ours, contained
};

std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  static Status Ok() { return {}; }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

  // The same failure seen from further out: "<context>: <message>".
  Status Annotate(std::string_view context) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

Status InvalidArgument(std::string message);
Status NotFound(std::string message);
Status Unsupported(std::string message);
Status Corrupt(std::string message);
Status FailedPrecondition(std::string message);
Status ResourceExhausted(std::string message);
Status Unavailable(std::string message);
Status Cancelled(std::string message);
Status DeadlineExceeded(std::string message);
Status Internal(std::string message);
// "<what>: <strerror(error)>"
Status IoError(std::string_view what, int error);

// A T, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {
    DF_CHECK(!status_.ok());
  }  // NOLINT(google-explicit-constructor)

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & {
    DF_CHECK(ok());
    return *value_;
  }
  const T& value() const& {
    DF_CHECK(ok());
    return *value_;
  }
  T&& value() && {
    DF_CHECK(ok());
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  Status status_;
  std::optional<T> value_;
};

#define DF_CONCAT_INNER(a, b) a##b
#define DF_CONCAT(a, b) DF_CONCAT_INNER(a, b)

// Returns the failure of `expr` (a Status) from the enclosing function.
#define DF_RETURN_IF_ERROR(expr)                                               \
  do {                                                                         \
    if (::df::Status df_status_ = (expr); !df_status_.ok()) return df_status_; \
  } while (false)

// DF_ASSIGN_OR_RETURN(auto x, Make());
#define DF_ASSIGN_OR_RETURN(lhs, expr) DF_ASSIGN_OR_RETURN_INNER(DF_CONCAT(df_result_, __LINE__), lhs, expr)
#define DF_ASSIGN_OR_RETURN_INNER(result, lhs, expr) \
  auto result = (expr);                              \
  if (!result.ok()) return result.status();          \
  lhs = std::move(*result)

}  // namespace df

#endif  // DELTAFOLD_BASE_STATUS_H_
