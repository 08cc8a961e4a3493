// One request that changes what is served, on its connection: a worker does it, so that slow disks hold nobody up.
#include <boost/asio/awaitable.hpp>

#include "server/admin.h"
#include "server/connection.h"
#include "server/worker_job.h"

namespace df::server {
namespace {

namespace asio = boost::asio;

AdminAnswer AnswerOrFail(const AdminContext& context, const AdminRequest& request) {
  try {
    return AnswerAdmin(context, request);
  } catch (const std::exception& error) {  // out of memory: this request fails, the server stays
    return {.response = ErrorResponse(FromStatus(Internal(error.what()))), .subject = "", .cause = error.what()};
  }
}

}  // namespace

asio::awaitable<void> AnswerAdminRequest(Connection& connection, AdminRequest request) {
  ServerState& state = connection.state();
  const RequestScope scope(connection);
  const auto answer = std::make_shared<AdminAnswer>();
  const auto job = std::make_shared<WorkerJob>();
  const VariantRoot* root = state.options.variant_root ? &*state.options.variant_root : nullptr;
  job->work = [answer, request = std::move(request), &store = state.service.store(), root] {
    *answer = AnswerOrFail({.store = store, .root = root}, request);
  };
  std::function<void()> waker = scope.waker();
  const JobEnd end = co_await RunOnWorker(connection, state.admin_workers, job, std::move(waker));
  connection.ReleaseBody();
  HttpResponse response;
  if (end == JobEnd::kDone) {
    response = std::move(answer->response);
    connection.log().subject = answer->subject;
    connection.log().cause = answer->cause;
  } else {
    response = ErrorResponse(end == JobEnd::kFull ? TransportError(429, "too many changes are waiting for their turn")
                                                  : ShuttingDown());
  }
  co_await connection.StopWatching();
  if (!connection.gone()) co_await connection.Respond(std::move(response));
}

}  // namespace df::server
