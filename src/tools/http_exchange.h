// One HTTP exchange as a coroutine: what single questions and loads of many are made of.
#ifndef DELTAFOLD_TOOLS_HTTP_EXCHANGE_H_
#define DELTAFOLD_TOOLS_HTTP_EXCHANGE_H_

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>
#include <chrono>
#include <string>
#include <string_view>

#include "tools/http_client.h"

namespace df::tools {

using Addresses = boost::asio::ip::tcp::resolver::results_type;
using HttpMessage = boost::beast::http::request<boost::beast::http::string_body>;

inline std::chrono::nanoseconds Nanoseconds(double seconds) {
  return std::chrono::nanoseconds(static_cast<int64_t>(seconds * 1e9));
}

Status NetworkError(const Endpoint& endpoint, const boost::system::error_code& error);

// What is told of an answer's body as it comes.
class Receiver {
 public:
  virtual ~Receiver() = default;
  virtual Status Take(unsigned status, std::string_view bytes) = 0;
};

HttpMessage MakeRequest(const Endpoint& endpoint, boost::beast::http::verb verb, const std::string& path);

// On a connection of its own. The answer's status; errors are kUnavailable and the receiver's. All but `timeout_s` must
// outlive the coroutine.
boost::asio::awaitable<Result<unsigned>> Exchange(const Endpoint& endpoint, const Addresses& addresses,
                                                  HttpMessage& request, double timeout_s, Receiver& receiver);

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_HTTP_EXCHANGE_H_
