// How coroutines of the I/O thread wait for news, from their own thread (Signal) or from others (Wake).
#ifndef DELTAFOLD_SERVER_WAKE_H_
#define DELTAFOLD_SERVER_WAKE_H_

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <memory>
#include <mutex>

namespace df::server {

using TimePoint = std::chrono::steady_clock::time_point;

inline TimePoint AfterMs(int64_t ms) { return std::chrono::steady_clock::now() + std::chrono::milliseconds(ms); }

// I/O thread only; one waiter.
class Signal {
 public:
  explicit Signal(const boost::asio::any_io_executor& executor) : timer_(executor) {}

  boost::asio::any_io_executor executor() { return timer_.get_executor(); }
  void Set() {
    set_ = true;
    timer_.cancel();
  }
  // True when Set was called since the last wait ended; false at the deadline.
  boost::asio::awaitable<bool> Wait(TimePoint deadline) {
    if (!set_) {
      timer_.expires_at(deadline);
      co_await timer_.async_wait(boost::asio::as_tuple(boost::asio::use_awaitable));
    }
    const bool was_set = set_;
    set_ = false;
    co_return was_set;
  }

 private:
  boost::asio::steady_timer timer_;
  bool set_ = false;
};

// Sets a Signal from any thread. The engine may hold it longer than the connection lives: Close cuts it off.
class Wake : public std::enable_shared_from_this<Wake> {
 public:
  Wake(boost::asio::any_io_executor executor, Signal& signal) : executor_(std::move(executor)), signal_(signal) {}

  void Notify();  // any thread
  void Close();   // I/O thread; neither executor nor signal is touched afterwards

 private:
  std::mutex mutex_;
  bool posted_ = false;  // one post on its way is enough
  bool closed_ = false;
  boost::asio::any_io_executor executor_;
  Signal& signal_;
};

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_WAKE_H_
