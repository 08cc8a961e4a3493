// One chat or completion request on its connection: a worker prepares it, then its events go out as they come.
#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <ctime>

#include "server/connection.h"
#include "server/running_answer.h"
#include "server/sse.h"

namespace df::server {
namespace {

namespace asio = boost::asio;

// Shared with the worker: whoever lets go last destroys the result, so a request that nobody waits for any more is
// cancelled.
struct Job {
  Route route = Route::kChat;
  PrepareContext context;
  std::string body;                // of whoever took it
  std::atomic<bool> taken{false};  // by the worker that runs the job, or by the connection that gives it up
  std::atomic<bool> done{false};   // release after `prepared` is written
  std::optional<Prepared> prepared;
};

bool Take(Job& job) { return !job.taken.exchange(true); }

void RunJob(TextService& service, Job& job) {
  if (!Take(job)) return;
  try {
    job.prepared = job.route == Route::kChat ? PrepareChat(service, std::move(job.body), job.context)
                                             : PrepareCompletion(service, std::move(job.body), job.context);
  } catch (const std::exception& error) {  // out of memory: this request fails, the server stays
    job.prepared = FromStatus(Internal(error.what()));
  }
  job.done.store(true, std::memory_order_release);
  job.context.wake();
}

// Everything that must happen however the request ends.
class Scope {
 public:
  explicit Scope(Connection& connection)
      : state_(connection.state()), wake_(std::make_shared<Wake>(connection.signal().executor(), connection.signal())) {
    ++state_.n_generations;
  }
  ~Scope() {
    wake_->Close();
    --state_.n_generations;
    if (state_.on_change) state_.on_change();
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

  std::function<void()> waker() const {
    return [wake = wake_] { wake->Notify(); };
  }

 private:
  ServerState& state_;
  std::shared_ptr<Wake> wake_;
};

void LogAnswer(Connection& connection, const RunningAnswer& answer) {
  const Usage usage = answer.TotalUsage();
  RequestLog& log = connection.log();
  log.finish = answer.finish_name();
  log.prompt_tokens = usage.prompt_tokens;
  log.completion_tokens = usage.completion_tokens;
  if (answer.failure()) log.cause = answer.failure()->message();
}

// What ends the answer for another reason than its own end.
std::optional<ApiError> Interruption(Connection& connection, const RunningAnswer& answer) {
  if (answer.failure()) return FromStatus(*answer.failure());
  if (connection.state().cancelling && !answer.ended()) return ShuttingDown();
  return std::nullopt;
}

asio::awaitable<void> AnswerWhole(Connection& connection, RunningAnswer& answer) {
  while (true) {
    answer.Advance();
    const std::optional<ApiError> interruption = Interruption(connection, answer);
    if (interruption || answer.ended() || connection.gone()) {
      co_await connection.StopWatching();
      if (connection.gone()) co_return;
      HttpResponse response = interruption ? ErrorResponse(*interruption) : HttpResponse{};
      if (!interruption) response.body = answer.WholeBody();
      co_await connection.Respond(std::move(response));
      co_return;
    }
    co_await connection.WaitForNews();
  }
}

// The last events; an error in the stream where the status line is already out.
std::string Epilogue(const RunningAnswer& answer, const std::optional<ApiError>& interruption) {
  std::string events;
  if (interruption) {
    events = SseEvent(DumpJson(ErrorBody(*interruption)));
  } else if (answer.prepared().include_usage) {
    events = answer.prepared().format.UsageEvent(answer.TotalUsage());
  }
  events += kSseDone;
  return events;
}

asio::awaitable<void> AnswerStreamed(Connection& connection, RunningAnswer& answer) {
  bool head_sent = false, had_news = true;
  while (!connection.gone()) {
    std::string events = answer.Advance();
    const std::optional<ApiError> interruption = Interruption(connection, answer);
    if (interruption && !head_sent && !answer.any_text()) {
      co_await connection.StopWatching();
      HttpResponse response = ErrorResponse(*interruption);
      co_await connection.Respond(std::move(response));
      co_return;
    }
    const bool last = interruption.has_value() || answer.ended();
    if (last) events += Epilogue(answer, interruption);
    if (events.empty() && !had_news) events = kSseComment;
    if (!events.empty()) {
      if (!head_sent) {
        co_await connection.StartStream();
        events.insert(0, answer.prepared().format.StartEvents(answer.prepared().streams.size()));
        head_sent = true;
      }
      co_await connection.WriteStreamed(events);
    }
    if (last) break;
    had_news = co_await connection.WaitForNews();
  }
  co_await connection.StopWatching();
  if (!connection.gone()) co_await connection.EndStream();
}

asio::awaitable<void> AnswerPrepared(Connection& connection, PreparedGeneration prepared) {
  static const SteadyClock clock;
  const int64_t arrival_us =
      std::chrono::duration_cast<std::chrono::microseconds>(connection.arrival().time_since_epoch()).count();
  connection.log().variant = prepared.variant_name;
  RunningAnswer answer(std::move(prepared), connection.state().metrics, clock, {.arrival_us = arrival_us});
  if (answer.prepared().stream) {
    co_await AnswerStreamed(connection, answer);
  } else {
    co_await AnswerWhole(connection, answer);
  }
  LogAnswer(connection, answer);
}

asio::awaitable<void> Refuse(Connection& connection, ApiError error) {
  co_await connection.StopWatching();
  HttpResponse response = ErrorResponse(error);
  if (!connection.gone()) co_await connection.Respond(std::move(response));
}

}  // namespace

asio::awaitable<void> AnswerGeneration(Connection& connection, Route route, std::string body) {
  ServerState& state = connection.state();
  const Scope scope(connection);
  const auto job = std::make_shared<Job>();
  job->route = route;
  job->body = std::move(body);
  job->context = {.unique_id = state.NextId(), .created_unix = std::time(nullptr), .wake = scope.waker()};
  const bool submitted = state.workers.Submit([job, &service = state.service] { RunJob(service, *job); });
  if (submitted) connection.StartWatching();
  while (submitted && !job->done.load(std::memory_order_acquire) && !connection.gone() && !state.cancelling) {
    co_await connection.WaitForNews();
  }
  const bool done = job->done.load(std::memory_order_acquire);
  if (!done && Take(*job)) std::string().swap(job->body);  // now: the job may wait for a worker much longer
  connection.ReleaseBody();
  if (!done) {
    ApiError error = submitted ? ShuttingDown() : TransportError(429, "too many requests are waiting to be read");
    co_await Refuse(connection, std::move(error));
    co_return;
  }
  if (ApiError* error = std::get_if<ApiError>(&*job->prepared)) {
    co_await Refuse(connection, std::move(*error));
    co_return;
  }
  PreparedGeneration prepared = std::move(std::get<PreparedGeneration>(*job->prepared));
  job->prepared.reset();
  co_await AnswerPrepared(connection, std::move(prepared));
}

}  // namespace df::server
