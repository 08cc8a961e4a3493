// Bytes of a connection to HTTP requests, without a socket: RFC 9112, strict where leniency lets two readers disagree
// about where a request ends (bare LF, two lengths, length with chunks). The grammar itself is Beast's.
#ifndef DELTAFOLD_SERVER_HTTP_READER_H_
#define DELTAFOLD_SERVER_HTTP_READER_H_

#include <memory>
#include <string>
#include <string_view>

#include "server/http_message.h"
#include "server/limits.h"

namespace df::server {

// One request. Thread-compatible.
class HttpReader {
 public:
  enum class State {
    kHeader,   // the header is not complete
    kBody,     // the header is; body bytes are missing
    kDone,     // request() is complete
    kRefused,  // answer with refused_status() and close
    kForeign,  // not HTTP/1 at all (TLS, HTTP/2): close without a word
  };

  explicit HttpReader(const ServerLimits& limits);
  ~HttpReader();

  // Takes a prefix of `bytes`, returns its length. The rest is to be offered again with more bytes behind it. Stops
  // once behind the header, so that a request can be refused before its body is read.
  size_t Feed(std::string_view bytes);

  // A smaller limit than that of all bodies, for the request whose header is complete (kBody).
  void LimitBody(size_t max_bytes);

  State state() const { return state_; }
  int refused_status() const { return refused_status_; }
  const std::string& refused_reason() const { return refused_reason_; }
  HttpRequest& request() { return request_; }  // all but `body` valid from kBody on, `body` once kDone
  size_t body_bytes() const;                   // read so far

 private:
  struct Parser;

  size_t FeedHeader(std::string_view bytes);
  size_t FeedBody(std::string_view bytes);
  void TakeHeader();
  void Refuse(int status, std::string reason);

  const ServerLimits& limits_;
  size_t body_limit_;
  std::unique_ptr<Parser> parser_;
  State state_ = State::kHeader;
  size_t scanned_bytes_ = 0;  // of the header, known to be without its end
  int refused_status_ = 0;
  std::string refused_reason_;
  HttpRequest request_;
};

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_HTTP_READER_H_
