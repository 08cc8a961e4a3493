// Single questions to a running server.
#ifndef DELTAFOLD_TOOLS_HTTP_CLIENT_H_
#define DELTAFOLD_TOOLS_HTTP_CLIENT_H_

#include <string>
#include <string_view>

#include "base/status.h"

namespace df::tools {

struct Endpoint {
  std::string host, port;
  std::string prefix;   // before "/v1": "" or "/path"
  std::string api_key;  // "" = none
};
// "http://host[:port][/path]", a "/v1" at the end is dropped. The only error is kInvalidArgument.
Result<Endpoint> ParseEndpoint(std::string_view url);

struct HttpQuestion {
  bool post = false;      // else GET
  std::string path;       // behind the endpoint's prefix, percent-encoded
  std::string body = "";  // JSON, of a POST
  double timeout_s = 10;  // for all of it
};
struct HttpAnswer {
  unsigned status = 0;
  std::string body;  // at most 64 MiB
};
// The only errors are kUnavailable (nobody answers there within the time) and kInternal.
Result<HttpAnswer> AskServer(const Endpoint& endpoint, const HttpQuestion& question);

// The body of GET `path`. kUnavailable when nobody answers within 10 s or not with status 200.
Result<std::string> Fetch(const Endpoint& endpoint, const std::string& path);

// `text` as one part of a path.
std::string PercentEncoded(std::string_view text);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_HTTP_CLIENT_H_
