// One TCP connection: requests in, one after another; answers out. Everything here runs on the I/O thread.
#ifndef DELTAFOLD_SERVER_CONNECTION_H_
#define DELTAFOLD_SERVER_CONNECTION_H_

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "server/admin.h"
#include "server/end_rate.h"
#include "server/http_reader.h"
#include "server/router.h"
#include "server/server.h"
#include "server/wake.h"
#include "server/worker_pool.h"

namespace df::server {

class Connection;

// What all connections of a server share.
struct ServerState {
  const ServerOptions& options;
  TextService& service;
  ServerMetrics& metrics;
  WorkerPool workers;
  WorkerPool admin_workers;  // files of variants may be slow: prompts do not wait for them
  std::list<Connection*> open;
  std::list<Connection*> idle;  // between requests or within a header, longest first
  size_t body_bytes = 0;        // held by all connections
  std::atomic<bool> returning_memory{false};
  size_t n_requests = 0;  // generations and changes whose answer is not written yet
  bool draining = false;
  bool cancelling = false;  // of what is left after draining
  bool closed = false;      // no further connection or request
  EndRate ends = {};        // of generations
  uint64_t id_seed = 0, n_ids = 0;
  std::function<void()> on_change;  // a generation or connection ended

  std::string NextId();  // 32 hexadecimal digits
  // On a worker, later: what large bodies took goes back to the system.
  void ReturnMemorySoon();
  // For who is refused since too many wait: when half of what is open will have ended.
  int64_t RetryAfterS() const;
  // Closes the connection that has been idle longest; false when none is.
  bool CloseOneIdle();
};

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  struct Options {
    bool probes_only = false;  // over the limit of connections
  };
  Connection(boost::asio::ip::tcp::socket socket, ServerState& state, Options options);

  boost::asio::awaitable<void> Run();
  // Ends a wait for a request; what is being answered goes on.
  void Stop();
  void WakeUp() { signal_.Set(); }

  // For the one that answers:
  ServerState& state() { return state_; }
  Signal& signal() { return signal_; }
  const HttpRequest& request() const { return request_; }
  RequestLog& log() { return log_; }
  TimePoint arrival() const { return arrival_; }
  // The client went away or takes nothing any more.
  bool gone() const { return gone_; }
  // Reads beside the answer, so that a client that leaves is noticed; what it sends meanwhile is kept, up to one
  // header. The end of its input may mean that it closed or only that it has no more to say (a half-closed connection):
  // so something is sent then, and a closed client's reset tells.
  void StartWatching();
  boost::asio::awaitable<void> StopWatching();
  // Waits for the signal. False when a comment is due even without news: the comment interval is over, or the client's
  // input has just ended. Where the response has not begun, that end is answered here, by an interim response.
  boost::asio::awaitable<bool> WaitForNews();
  // The body is no longer held: its bytes count no more.
  void ReleaseBody();
  // All of `bytes` within the write timeout; gone() otherwise.
  boost::asio::awaitable<void> Write(std::string bytes);
  boost::asio::awaitable<void> Respond(HttpResponse response);
  // The head of an answer of unknown length, with `framing()`.
  boost::asio::awaitable<void> StartStream();
  boost::asio::awaitable<void> WriteStreamed(std::string_view data);
  boost::asio::awaitable<void> EndStream();

 private:
  static constexpr size_t kReadBytes = size_t{16} << 10;
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";

  boost::asio::awaitable<bool> ServeOne();
  boost::asio::awaitable<bool> ReadHeader();
  boost::asio::awaitable<bool> ReadBody();
  boost::asio::awaitable<bool> ReadSome();
  boost::asio::awaitable<void> Refuse(int status, std::string_view reason);  // `reason` outlives the answer
  boost::asio::awaitable<void> AnswerRoute(RouteMatch match);
  boost::asio::awaitable<void> Watch();
  boost::asio::awaitable<void> AwaitReset();
  boost::asio::awaitable<void> Linger();
  std::optional<HttpResponse> RefusalBeforeBody(const RouteMatch& match) const;
  std::optional<ApiError> RefusalOfCaller(const RouteMatch& match) const;
  void BeginRequest();
  void FinishRequest();
  void ReserveBody();
  void SetDeadline(int64_t ms);
  void ClearDeadline();

  boost::asio::ip::tcp::socket socket_;
  ServerState& state_;
  const Options options_;
  Signal signal_;
  boost::asio::steady_timer deadline_;
  uint64_t deadline_epoch_ = 0;
  bool timed_out_ = false;
  bool stopped_ = false;
  bool gone_ = false;
  bool keep_alive_ = true;
  bool unread_body_ = false;  // refused before its end: linger
  bool watching_ = false;
  bool watch_wanted_ = false;
  bool response_started_ = false;
  bool input_ended_ = false;  // the client has closed, or half-closed, the connection
  bool asking_ = false;       // which of the two is to be found out
  size_t reserved_body_bytes_ = 0;
  std::string input_;  // received, not yet taken by the reader
  std::optional<HttpReader> reader_;
  HttpRequest request_;
  RequestLog log_;
  TimePoint arrival_;
};

// Runs one chat or completion request on its connection, from body to last byte.
boost::asio::awaitable<void> AnswerGeneration(Connection& connection, Route route, std::string body);
// Runs one request that changes what is served, likewise.
boost::asio::awaitable<void> AnswerAdminRequest(Connection& connection, AdminRequest request);

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_CONNECTION_H_
