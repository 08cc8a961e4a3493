#include "server/server.h"

#include <sys/resource.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

#include "server/connection.h"

namespace df::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);

// While descriptors are short, accepting is tried again at this pace.
constexpr int64_t kAcceptRetryMs = 20;
// After the cancellation: for last events to reach clients that read.
constexpr int64_t kFarewellMs = 2'000;
// Descriptors left to model files, logs and the like.
constexpr size_t kSpareDescriptors = 32;

size_t ConnectionsWithinDescriptors(size_t wanted) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return wanted;
  const auto descriptors = static_cast<size_t>(limit.rlim_cur);
  const size_t room = descriptors > 2 * kSpareDescriptors ? descriptors - kSpareDescriptors : descriptors / 2;
  return std::max<size_t>(1, std::min(wanted, room));
}

uint64_t RandomSeed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) ^ device();
}

}  // namespace

struct Server::Impl {
  Impl(ServerOptions given, Sources sources)
      : options(std::move(given)),
        acceptor(io),
        changed(io.get_executor()),
        state{.options = options,
              .service = sources.service,
              .metrics = sources.metrics,
              .workers = WorkerPool(options.limits.n_workers, options.limits.max_queued_jobs),
              .admin_workers = WorkerPool(options.limits.n_admin_workers, options.limits.max_queued_admin_jobs),
              .open = {},
              .idle = {},
              .id_seed = RandomSeed(),
              .on_change = [this] { changed.Set(); }} {}

  Status Listen(BoundSocket socket);
  asio::awaitable<void> Accept();
  void TakeConnection(tcp::socket socket);
  asio::awaitable<void> Drain();
  void ShortenDeadline(TimePoint wanted);

  ServerOptions options;
  asio::io_context io{1};  // one thread: no locks in here
  tcp::acceptor acceptor;
  Signal changed;
  ServerState state;
  uint16_t port = 0;  // as bound
  size_t max_connections = 0;
  TimePoint deadline = TimePoint::max();  // of draining

  std::mutex mutex;
  std::condition_variable ended_changed;
  bool ended = false;  // guarded by mutex
  std::thread thread;
};

Status Server::Impl::Listen(BoundSocket socket) {
  error_code error;
  port = socket.port();
  acceptor.assign(socket.is_v6() ? tcp::v6() : tcp::v4(), socket.Release(), error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) return IoError("cannot listen on port " + std::to_string(port), error.value());
  max_connections = ConnectionsWithinDescriptors(options.limits.max_connections);
  return Status::Ok();
}

asio::awaitable<void> Server::Impl::Accept() {
  while (acceptor.is_open()) {
    auto [error, socket] = co_await acceptor.async_accept(kTuple);
    if (error == asio::error::operation_aborted) co_return;
    if (error) {  // no descriptors left, most likely: make room, go on
      state.CloseOneIdle();
      asio::steady_timer pause(io);
      pause.expires_after(std::chrono::milliseconds(kAcceptRetryMs));
      co_await pause.async_wait(kTuple);
      continue;
    }
    TakeConnection(std::move(socket));
  }
}

void Server::Impl::TakeConnection(tcp::socket socket) {
  if (state.closed) return;  // accepted while the acceptor was being closed
  bool probes_only = false;
  if (state.open.size() >= max_connections && !state.CloseOneIdle()) {
    if (state.open.size() >= max_connections + options.limits.reserve_connections) return;  // closes the socket
    probes_only = true;
  }
  const auto connection =
      std::make_shared<Connection>(std::move(socket), state, Connection::Options{.probes_only = probes_only});
  asio::co_spawn(io, [connection] { return connection->Run(); }, asio::detached);
}

void Server::Impl::ShortenDeadline(TimePoint wanted) {
  deadline = std::min(deadline, wanted);
  const bool first = !state.draining;
  state.draining = true;
  if (first) asio::co_spawn(io, Drain(), asio::detached);
  changed.Set();
}

asio::awaitable<void> Server::Impl::Drain() {
  while (state.n_requests > 0 && std::chrono::steady_clock::now() < deadline) co_await changed.Wait(deadline);
  state.cancelling = true;
  for (Connection* connection : state.open) connection->WakeUp();
  const TimePoint farewell = AfterMs(kFarewellMs);
  while (state.n_requests > 0 && std::chrono::steady_clock::now() < farewell) co_await changed.Wait(farewell);
  error_code ignored;
  state.closed = true;
  acceptor.close(ignored);
  while (!state.open.empty()) {
    for (Connection* connection : state.open) connection->Stop();
    co_await changed.Wait(AfterMs(kAcceptRetryMs));
  }
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Server>> Server::Start(BoundSocket socket, ServerOptions options, Sources sources) {
  auto impl = std::make_unique<Impl>(std::move(options), sources);
  DF_RETURN_IF_ERROR(impl->Listen(std::move(socket)));
  Impl* raw = impl.get();
  asio::co_spawn(impl->io, raw->Accept(), asio::detached);
  impl->thread = std::thread([raw] {
    raw->io.run();  // until Drain is through: then nothing is left to do
    const std::lock_guard lock(raw->mutex);
    raw->ended = true;
    raw->ended_changed.notify_all();
  });
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::~Server() {
  Shutdown(0);
  impl_->thread.join();
}

uint16_t Server::port() const { return impl_->port; }

void Server::Shutdown(int64_t timeout_ms) {
  asio::post(impl_->io, [impl = impl_.get(), timeout_ms] { impl->ShortenDeadline(AfterMs(timeout_ms)); });
}

bool Server::WaitEnded(int64_t timeout_ms) {
  std::unique_lock lock(impl_->mutex);
  return impl_->ended_changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), [this] { return impl_->ended; });
}

}  // namespace df::server
