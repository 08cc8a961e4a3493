#include "server/worker_job.h"

namespace df::server {
namespace {

bool Take(WorkerJob& job) { return !job.taken.exchange(true); }

}  // namespace

RequestScope::RequestScope(Connection& connection)
    : state_(connection.state()), wake_(std::make_shared<Wake>(connection.signal().executor(), connection.signal())) {
  ++state_.n_requests;
}

RequestScope::~RequestScope() {
  wake_->Close();
  --state_.n_requests;
  if (state_.on_change) state_.on_change();
}

std::function<void()> RequestScope::waker() const {
  return [wake = wake_] { wake->Notify(); };
}

boost::asio::awaitable<JobEnd> RunOnWorker(Connection& connection, WorkerPool& pool,
                                           const std::shared_ptr<WorkerJob>& job, std::function<void()> wake) {
  const bool submitted = pool.Submit([job, wake = std::move(wake)] {
    if (!Take(*job)) return;
    job->work();
    job->done.store(true, std::memory_order_release);
    wake();
  });
  if (!submitted) co_return JobEnd::kFull;
  connection.StartWatching();
  while (!job->done.load(std::memory_order_acquire) && !connection.gone() && !connection.state().cancelling) {
    co_await connection.WaitForNews();
  }
  if (job->done.load(std::memory_order_acquire)) co_return JobEnd::kDone;
  if (Take(*job)) job->work = nullptr;  // now: the job may wait for a worker much longer
  co_return JobEnd::kGivenUp;
}

}  // namespace df::server
