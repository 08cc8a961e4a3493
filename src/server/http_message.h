// One HTTP request and response as the routes see them: no sockets, no parser.
#ifndef DELTAFOLD_SERVER_HTTP_MESSAGE_H_
#define DELTAFOLD_SERVER_HTTP_MESSAGE_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace df::server {

struct HttpRequest {
  std::string method;
  std::string path;           // target without scheme, authority and query; still percent-encoded
  std::string authorization;  // header value, "" when absent
  std::string request_id;     // X-Request-Id when it is 1..128 visible ASCII characters, else ""
  std::string host;           // as sent, port included; "" when absent
  std::string origin;         // "" when absent
  bool forwarded = false;     // a proxy says that it speaks for somebody else
  bool http_1_1 = true;
  bool keep_alive = true;
  bool has_body = false;
  bool expects_continue = false;
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
};

std::string_view ReasonPhrase(int status);

enum class BodyFraming { kLength, kChunked, kUntilClose };

struct HeadOptions {
  BodyFraming framing = BodyFraming::kLength;
  bool keep_alive = true;
};
// Status line and headers, the empty line included. Header values hold no control characters: they are ours or checked.
std::string RenderHead(const HttpResponse& response, HeadOptions options);

// `data` as one chunk of a chunked body; the last chunk is "0\r\n\r\n".
std::string RenderChunk(std::string_view data);

// "%41" -> "A". False for a broken escape or a decoded control character.
bool PercentDecode(std::string_view text, std::string& decoded);

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_HTTP_MESSAGE_H_
