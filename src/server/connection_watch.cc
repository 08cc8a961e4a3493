// How a connection notices, beside the answer, that its client has left.
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "server/connection.h"

namespace df::server {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);

}  // namespace

void Connection::StartWatching() {
  watch_wanted_ = true;
  watching_ = true;
  asio::co_spawn(socket_.get_executor(), Watch(), asio::detached);
}

asio::awaitable<void> Connection::Watch() {
  const auto self = shared_from_this();
  struct AtEnd {
    Connection& connection;
    ~AtEnd() {
      connection.watching_ = false;
      connection.signal_.Set();
    }
  } at_end{*this};
  // A client that pipelines more than this is only seen to leave when a write fails.
  while (watch_wanted_ && input_.size() < state_.options.limits.max_header_bytes) {
    const size_t before = input_.size();
    input_.resize(before + kReadBytes);
    const auto [error, n_bytes] =
        co_await socket_.async_read_some(asio::buffer(input_.data() + before, kReadBytes), kTuple);
    input_.resize(before + n_bytes);
    if (error == asio::error::operation_aborted) break;
    // Read before StopWatching, told after it: the answer is on its way, and the cancellation that would end the wait
    // for a reset is over.
    if (error == asio::error::eof && !watch_wanted_) break;
    if (error == asio::error::eof && request_.http_1_1) {  // HTTP/1.0 knows no interim response to ask by
      co_await AwaitReset();
      break;
    }
    if (error) {
      gone_ = true;
      break;
    }
  }
}

asio::awaitable<void> Connection::AwaitReset() {
  input_ended_ = asking_ = true;
  signal_.Set();
  const auto [error] = co_await socket_.async_wait(asio::socket_base::wait_error, kTuple);
  if (!error) gone_ = true;
}

asio::awaitable<bool> Connection::WaitForNews() {
  const bool timed_out = !co_await signal_.Wait(AfterMs(state_.options.limits.comment_interval_ms));
  const bool ask = std::exchange(asking_, false) || (timed_out && input_ended_);
  if (ask && !response_started_) {
    std::string interim(kContinue);
    co_await Write(std::move(interim));
  }
  co_return !timed_out && !(ask && response_started_);
}

asio::awaitable<void> Connection::StopWatching() {
  watch_wanted_ = false;
  if (watching_) {
    error_code ignored;
    socket_.cancel(ignored);
  }
  while (watching_) co_await signal_.Wait(AfterMs(1000));
}

}  // namespace df::server
