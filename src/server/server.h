// server/: OpenAI's HTTP interface over the engine. Input: bytes of TCP connections; output: JSON and server-sent
// events. `reader -> router -> worker (JSON, template, tokens) -> streams -> format -> socket`. Called by `deltafold
// serve`. Request JSON and sockets never leave this folder. One thread of its own does all I/O and never waits for the
// engine, nor the engine for it; a few workers do what takes long before the first token.
#ifndef DELTAFOLD_SERVER_SERVER_H_
#define DELTAFOLD_SERVER_SERVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "metrics/metrics.h"
#include "server/admin_access.h"
#include "server/bound_socket.h"
#include "server/limits.h"
#include "server/text_service.h"
#include "server/variant_root.h"

namespace df::server {

// One line of the log; no text of prompts or answers.
struct RequestLog {
  std::string request_id;
  std::string method, path;
  int status = 0;
  bool probe = false;
  std::string variant;  // "" for what generates nothing
  std::string subject;  // the variant that an admin route is about
  std::string finish;   // "stop", "length", "abort", "error" or ""
  size_t prompt_tokens = 0, completion_tokens = 0;
  double seconds = 0;
  std::string cause;  // what the client was not told, for 5xx
};

struct ServerOptions {
  AccessKeys keys;
  std::vector<std::string> allowed_hosts;   // names that admin routes are called by, besides addresses and localhost
  std::optional<VariantRoot> variant_root;  // absent: nothing is loaded or unloaded while the server runs
  std::string version;
  ServerLimits limits;
  std::function<void(const RequestLog&)> log;  // I/O thread; must not block; may be empty
};

// Thread-safe.
class Server {
 public:
  // What a server answers from; both must outlive it.
  struct Sources {
    TextService& service;
    ServerMetrics& metrics;
  };
  // Listens at once. The only error is kIo: somebody else has begun to listen there.
  static Result<std::unique_ptr<Server>> Start(BoundSocket socket, ServerOptions options, Sources sources);
  ~Server();  // Shutdown(0), then waits

  uint16_t port() const;
  // /ready turns false and new generations are refused; those under way have `timeout_ms` to end, then they are
  // cancelled and all connections closed. A later call can only shorten the wait.
  void Shutdown(int64_t timeout_ms);
  // Whether the server has ended, after waiting for that at most `timeout_ms`.
  bool WaitEnded(int64_t timeout_ms);

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_SERVER_H_
