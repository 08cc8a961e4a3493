#include "tools/http_client.h"

#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>

#include "tools/http_exchange.h"

namespace df::tools {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr size_t kMaxBodyBytes = size_t{64} << 20;
constexpr size_t kMaxCauseBytes = 300;

class WholeBody final : public Receiver {
 public:
  explicit WholeBody(std::string& body) : body_(body) {}
  Status Take(unsigned /*status*/, std::string_view bytes) override {
    body_ += bytes;
    return Status::Ok();
  }

 private:
  std::string& body_;
};

Result<HttpAnswer> Ask(const Endpoint& endpoint, const HttpQuestion& question) {
  asio::io_context io;
  error_code error;
  const Addresses addresses = asio::ip::tcp::resolver(io).resolve(endpoint.host, endpoint.port, error);
  if (error) return NetworkError(endpoint, error);
  HttpMessage request = MakeRequest(endpoint, question.post ? http::verb::post : http::verb::get, question.path);
  if (question.post) {
    request.set(http::field::content_type, "application/json");
    request.body() = question.body;
    request.prepare_payload();
  }
  HttpAnswer answer;
  WholeBody receiver(answer.body);
  Result<unsigned> status = Internal("no exchange took place");
  asio::co_spawn(
      io,
      [&]() -> asio::awaitable<void> {
        status = co_await Exchange(endpoint, addresses, request, question.timeout_s, receiver);
      },
      asio::detached);
  io.run();
  if (!status.ok()) return status.status();
  answer.status = *status;
  return answer;
}

}  // namespace

Status NetworkError(const Endpoint& endpoint, const error_code& error) {
  return Unavailable(endpoint.host + ":" + endpoint.port + ": " + error.message());
}

HttpMessage MakeRequest(const Endpoint& endpoint, http::verb verb, const std::string& path) {
  HttpMessage request(verb, endpoint.prefix + path, 11);
  const bool is_v6 = endpoint.host.find(':') != std::string::npos;
  request.set(http::field::host, (is_v6 ? "[" + endpoint.host + "]" : endpoint.host) + ":" + endpoint.port);
  request.set(http::field::connection, "close");
  if (!endpoint.api_key.empty()) request.set(http::field::authorization, "Bearer " + endpoint.api_key);
  return request;
}

asio::awaitable<Result<unsigned>> Exchange(const Endpoint& endpoint, const Addresses& addresses, HttpMessage& request,
                                           double timeout_s, Receiver& receiver) {
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
  while (!parser.is_done()) {
    parser.get().body().data = piece.data();
    parser.get().body().size = piece.size();
    const auto [error, n_read] = co_await http::async_read_some(stream, buffer, parser, kTuple);
    if (error && error != http::error::need_buffer) co_return NetworkError(endpoint, error);
    const Status taken = receiver.Take(status, {piece.data(), piece.size() - parser.get().body().size});
    if (!taken.ok()) co_return taken;
  }
  co_return status;
}

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
  constexpr int kMaxPort = 65535;
  const bool is_port =
      digits && !endpoint.port.empty() && endpoint.port.size() <= 5 && std::stoi(endpoint.port) <= kMaxPort;
  const bool plain = path.find_first_of(" \r\n\t") == std::string_view::npos;
  if (endpoint.host.empty() || !is_port || !plain) {
    return InvalidArgument("url must be http://HOST[:PORT], a port at most 65535, got http://" + std::string(url));
  }
  return endpoint;
}

Result<HttpAnswer> AskServer(const Endpoint& endpoint, const HttpQuestion& question) {
  try {
    return Ask(endpoint, question);
  } catch (const std::exception& error) {  // Asio's own, for want of descriptors or memory
    return Internal(error.what());
  }
}

Result<std::string> Fetch(const Endpoint& endpoint, const std::string& path) {
  DF_ASSIGN_OR_RETURN(HttpAnswer answer, AskServer(endpoint, {.path = path}));
  if (answer.status != 200) {
    return Unavailable("status " + std::to_string(answer.status) + ": " + answer.body.substr(0, kMaxCauseBytes));
  }
  return std::move(answer.body);
}

std::string PercentEncoded(std::string_view text) {
  constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string encoded;
  for (const char c : text) {
    if (kPlain.find(c) != std::string_view::npos) {
      encoded += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      encoded += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return encoded;
}

}  // namespace df::tools
