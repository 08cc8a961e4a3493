// Work of one request that takes long: on a worker, while its connection goes on watching the client.
#ifndef DELTAFOLD_SERVER_WORKER_JOB_H_
#define DELTAFOLD_SERVER_WORKER_JOB_H_

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <functional>
#include <memory>

#include "server/connection.h"
#include "server/wake.h"
#include "server/worker_pool.h"

namespace df::server {

// Everything that must happen however a request ends. I/O thread.
class RequestScope {
 public:
  explicit RequestScope(Connection& connection);
  ~RequestScope();
  RequestScope(const RequestScope&) = delete;
  RequestScope& operator=(const RequestScope&) = delete;

  // Tells the connection that there is news; from any thread, also when the request is over.
  std::function<void()> waker() const;

 private:
  ServerState& state_;
  std::shared_ptr<Wake> wake_;
};

// Shared with the worker: whoever lets go last destroys what the work holds.
struct WorkerJob {
  std::function<void()> work;      // throws nothing; of whoever took it
  std::atomic<bool> taken{false};  // by the worker that runs it, or by the connection that gives it up
  std::atomic<bool> done{false};   // release after the work
};

enum class JobEnd {
  kDone,
  kFull,     // too many wait for a worker: not taken
  kGivenUp,  // the client is gone or the server ends; the work is dropped if it has not begun, else it goes on alone
};
// The connection is being watched afterwards (Connection::StopWatching), unless kFull. `job` must outlive the
// coroutine.
boost::asio::awaitable<JobEnd> RunOnWorker(Connection& connection, WorkerPool& pool,
                                           const std::shared_ptr<WorkerJob>& job, std::function<void()> wake);

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_WORKER_JOB_H_
