#include "tools/load_client.h"

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <chrono>

#include "base/json.h"
#include "base/rng.h"
#include "tools/sse_reader.h"

namespace df::tools {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using Addresses = asio::ip::tcp::resolver::results_type;
using Steady = std::chrono::steady_clock;

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr size_t kMaxBodyBytes = size_t{64} << 20;
constexpr size_t kMaxCauseBytes = 300;
constexpr double kFetchSeconds = 10;

std::chrono::nanoseconds Nanoseconds(double seconds) {
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

double SecondsSince(Steady::time_point start) { return std::chrono::duration<double>(Steady::now() - start).count(); }

Status NetworkError(const Endpoint& endpoint, const error_code& error) {
  return Unavailable(endpoint.host + ":" + endpoint.port + ": " + error.message());
}

// What is told of an answer as it comes.
class Receiver {
 public:
  virtual ~Receiver() = default;
  virtual Status Take(std::string_view bytes) = 0;
};

// One exchange on a connection of its own: the body goes to `receiver`; a status other than 200 is an error with the
// beginning of the body.
asio::awaitable<Status> Exchange(const Endpoint& endpoint, const Addresses& addresses,
                                 http::request<http::string_body>& request, double timeout_s, Receiver& receiver) {
  const asio::any_io_executor executor = co_await asio::this_coro::executor;
  beast::tcp_stream stream(executor);
  stream.expires_after(Nanoseconds(timeout_s));
  const auto [connect_error, at] = co_await stream.async_connect(addresses, kTuple);
  if (connect_error) co_return NetworkError(endpoint, connect_error);
  error_code ignored;
  stream.socket().set_option(asio::ip::tcp::no_delay(true), ignored);
  const auto [write_error, n_written] = co_await http::async_write(stream, request, kTuple);
  if (write_error) co_return NetworkError(endpoint, write_error);

  beast::flat_buffer buffer;
  http::response_parser<http::buffer_body> parser;
  parser.body_limit(kMaxBodyBytes);
  const auto [header_error, n_header] = co_await http::async_read_header(stream, buffer, parser, kTuple);
  if (header_error) co_return NetworkError(endpoint, header_error);
  const unsigned status = parser.get().result_int();
  std::array<char, 16384> piece;
  std::string cause;
  while (!parser.is_done()) {
    parser.get().body().data = piece.data();
    parser.get().body().size = piece.size();
    const auto [error, n_read] = co_await http::async_read_some(stream, buffer, parser, kTuple);
    if (error && error != http::error::need_buffer) co_return NetworkError(endpoint, error);
    const std::string_view bytes(piece.data(), piece.size() - parser.get().body().size);
    if (status == 200) {
      const Status taken = receiver.Take(bytes);
      if (!taken.ok()) co_return taken;
    } else if (cause.size() < kMaxCauseBytes) {
      cause += bytes.substr(0, kMaxCauseBytes - cause.size());
    }
  }
  if (status != 200) co_return Unavailable("status " + std::to_string(status) + ": " + cause);
  co_return Status::Ok();
}

http::request<http::string_body> MakeRequest(const Endpoint& endpoint, http::verb verb, const std::string& path) {
  http::request<http::string_body> request(verb, endpoint.prefix + path, 11);
  request.set(http::field::host, endpoint.host + ":" + endpoint.port);
  request.set(http::field::connection, "close");
  if (!endpoint.api_key.empty()) request.set(http::field::authorization, "Bearer " + endpoint.api_key);
  return request;
}

// Chunks of a streamed completion become times.
class TokenTimes final : public Receiver {
 public:
  TokenTimes(Steady::time_point sent, LoadOutcome& outcome) : sent_(sent), outcome_(outcome) {}

  Status Take(std::string_view bytes) override {
    events_.clear();
    DF_RETURN_IF_ERROR(reader_.Feed(bytes, events_));
    for (const std::string& event : events_) DF_RETURN_IF_ERROR(TakeEvent(event));
    return Status::Ok();
  }

  Status End() {
    if (!done_) return Unavailable("the stream ended without [DONE]");
    if (n_chunks_ == 0) return Unavailable("the stream held no token");
    if (outcome_.n_output == 0) outcome_.n_output = n_chunks_;
    return Status::Ok();
  }

 private:
  Status TakeEvent(const std::string& event) {
    if (event == "[DONE]") {
      done_ = true;
      return Status::Ok();
    }
    DF_ASSIGN_OR_RETURN(const Json json, ParseJson(event));
    if (!json.is_object()) return Unavailable("a chunk that is no object");
    if (JsonMemberOrNull(json, "error") != nullptr) return Unavailable("the stream ended with an error: " + event);
    if (const Json* usage = JsonMemberOrNull(json, "usage"); usage != nullptr && usage->is_object()) {
      DF_ASSIGN_OR_RETURN(const int64_t n, JsonIntOr(*usage, "completion_tokens", {.min = 0, .max = INT32_MAX}, 0));
      outcome_.n_output = static_cast<size_t>(n);
    }
    const Json* choices = JsonMemberOrNull(json, "choices");
    if (choices == nullptr || !choices->is_array() || choices->empty() || !(*choices)[0].is_object()) {
      return Status::Ok();
    }
    const Json& choice = (*choices)[0];
    DF_ASSIGN_OR_RETURN(const std::string text, JsonStringOr(choice, "text", ""));
    if (text.empty() && JsonMemberOrNull(choice, "finish_reason") != nullptr)
      return Status::Ok();  // says the end alone
    CountChunk();
    return Status::Ok();
  }

  void CountChunk() {
    const double now_s = SecondsSince(sent_);
    if (n_chunks_++ == 0) {
      outcome_.ttft_s = now_s;
    } else {
      outcome_.gap_s.push_back(now_s - outcome_.e2e_s);
    }
    outcome_.e2e_s = now_s;
  }

  Steady::time_point sent_;
  LoadOutcome& outcome_;
  SseReader reader_;
  std::vector<std::string> events_;
  size_t n_chunks_ = 0;
  bool done_ = false;
};

std::string BodyOf(const LoadRequest& request, size_t vocab) {
  Json prompt = Json::array();
  for (size_t i = 0; i < request.n_prompt; ++i) prompt.push_back(1 + RandomBits(request.seed, i) % vocab);
  const Json body = {{"model", request.model},
                     {"prompt", std::move(prompt)},
                     {"max_tokens", request.n_output},
                     {"temperature", 0},
                     {"ignore_eos", true},
                     {"stream", true},
                     {"stream_options", {{"include_usage", true}}}};
  return DumpJson(body);
}

// All requests of one run, on the thread that calls.
class Load {
 public:
  Load(const Endpoint& endpoint, const std::vector<LoadRequest>& requests, const LoadOptions& options)
      : endpoint_(endpoint), requests_(requests), options_(options), start_(Steady::now()) {}

  Result<LoadResult> Run() {
    error_code error;
    addresses_ = asio::ip::tcp::resolver(io_).resolve(endpoint_.host, endpoint_.port, error);
    if (error) return NetworkError(endpoint_, error);
    result_.outcomes.resize(requests_.size());
    start_ = Steady::now();
    asio::co_spawn(io_, Arrive(), asio::detached);
    io_.run();
    result_.duration_s = SecondsSince(start_);
    return std::move(result_);
  }

 private:
  asio::awaitable<void> Arrive() {
    asio::steady_timer timer(io_);
    for (size_t i = 0; i < requests_.size(); ++i) {
      timer.expires_at(start_ + Nanoseconds(requests_[i].at_s));
      co_await timer.async_wait(kTuple);
      while (n_running_ >= options_.max_concurrency) {
        timer.expires_after(std::chrono::milliseconds(1));
        co_await timer.async_wait(kTuple);
      }
      ++n_running_;
      asio::co_spawn(io_, One(requests_[i], result_.outcomes[i]), asio::detached);
    }
  }

  asio::awaitable<void> One(const LoadRequest& request, LoadOutcome& outcome) {
    http::request<http::string_body> message = MakeRequest(endpoint_, http::verb::post, "/v1/completions");
    message.set(http::field::content_type, "application/json");
    message.body() = BodyOf(request, options_.vocab);
    message.prepare_payload();
    TokenTimes times(Steady::now(), outcome);
    try {
      outcome.status = co_await Exchange(endpoint_, addresses_, message, options_.timeout_s, times);
      if (outcome.status.ok()) outcome.status = times.End();
    } catch (const std::exception& error) {  // Asio's own: this request failed, the others go on
      outcome.status = Internal(error.what());
    }
    --n_running_;
  }

  const Endpoint& endpoint_;
  const std::vector<LoadRequest>& requests_;
  const LoadOptions& options_;
  asio::io_context io_;
  Addresses addresses_;
  Steady::time_point start_;
  size_t n_running_ = 0;
  LoadResult result_;
};

class WholeBody final : public Receiver {
 public:
  explicit WholeBody(std::string& body) : body_(body) {}
  Status Take(std::string_view bytes) override {
    body_ += bytes;
    return Status::Ok();
  }

 private:
  std::string& body_;
};

}  // namespace

Result<Endpoint> ParseEndpoint(std::string_view url) {
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) {
    return InvalidArgument("url must begin with http://, got \"" + std::string(url) + "\"");
  }
  url.remove_prefix(kScheme.size());
  const std::string_view authority = url.substr(0, url.find('/'));
  std::string_view path = url.substr(authority.size());
  while (path.ends_with('/')) path.remove_suffix(1);
  if (path.ends_with("/v1")) path.remove_suffix(3);
  const bool bracketed = authority.starts_with('[');  // an IPv6 address
  const size_t host_end = bracketed ? authority.find(']') : authority.find(':');
  if (bracketed && host_end == std::string_view::npos) return InvalidArgument("url has no ] after its address");
  Endpoint endpoint;
  endpoint.host = authority.substr(bracketed ? 1 : 0, bracketed ? host_end - 1 : host_end);
  endpoint.prefix = path;
  const std::string_view rest =
      host_end == std::string_view::npos ? "" : authority.substr(host_end + (bracketed ? 1 : 0));
  endpoint.port = rest.starts_with(':') ? std::string(rest.substr(1)) : "80";
  const bool digits = endpoint.port.find_first_not_of("0123456789") == std::string::npos;
  const bool plain = path.find_first_of(" \r\n\t") == std::string_view::npos;
  if (endpoint.host.empty() || endpoint.port.empty() || endpoint.port.size() > 5 || !digits || !plain) {
    return InvalidArgument("url must be http://HOST[:PORT], got http://" + std::string(url));
  }
  return endpoint;
}

Result<LoadResult> SendLoad(const Endpoint& endpoint, const std::vector<LoadRequest>& requests,
                            const LoadOptions& options) {
  try {
    return Load(endpoint, requests, options).Run();
  } catch (const std::exception& error) {  // Asio's own, for want of descriptors or memory
    return Internal(error.what());
  }
}

Result<std::string> Fetch(const Endpoint& endpoint, const std::string& path) {
  asio::io_context io;
  error_code error;
  const Addresses addresses = asio::ip::tcp::resolver(io).resolve(endpoint.host, endpoint.port, error);
  if (error) return NetworkError(endpoint, error);
  http::request<http::string_body> request = MakeRequest(endpoint, http::verb::get, path);
  std::string body;
  WholeBody receiver(body);
  Status status;
  asio::co_spawn(
      io,
      [&]() -> asio::awaitable<void> {
        status = co_await Exchange(endpoint, addresses, request, kFetchSeconds, receiver);
      },
      asio::detached);
  io.run();
  DF_RETURN_IF_ERROR(status);
  return body;
}

}  // namespace df::tools
