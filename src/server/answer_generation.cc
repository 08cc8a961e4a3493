// One chat or completion request on its connection: a worker prepares it, then its events go out as they come.
#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <ctime>

#include "server/connection.h"
#include "server/running_answer.h"
#include "server/sse.h"
#include "server/worker_job.h"

namespace df::server {
namespace {

namespace asio = boost::asio;

Prepared PrepareOrFail(TextService& service, Route route, std::string body, const PrepareContext& context) {
  try {
    return route == Route::kChat ? PrepareChat(service, std::move(body), context)
                                 : PrepareCompletion(service, std::move(body), context);
  } catch (const std::exception& error) {  // out of memory: this request fails, the server stays
    return FromStatus(Internal(error.what()));
  }
}

void LogAnswer(Connection& connection, const RunningAnswer& answer) {
  const Usage usage = answer.TotalUsage();
  RequestLog& log = connection.log();
  log.finish = answer.finish_name();
  log.prompt_tokens = usage.prompt_tokens;
  log.completion_tokens = usage.completion_tokens;
  if (answer.failure()) log.cause = answer.failure()->message();
}

// When a load of the variant is tried again; 1 where it is under way.
int64_t LoadRetryAfterS(const VariantStore& store, std::string_view name) {
  for (const VariantStatus& status : store.Statuses()) {
    if (status.variant->name == name) return std::max<int64_t>(1, (status.retry_in_ms + 999) / 1000);
  }
  return 1;
}

// What ends the answer for another reason than its own end.
std::optional<ApiError> Interruption(Connection& connection, const RunningAnswer& answer) {
  if (answer.failure()) {
    const std::string& name = answer.prepared().variant_name;
    ApiError error = GenerationFailure(*answer.failure(), name);
    if (error.status == 503) error.retry_after_s = LoadRetryAfterS(connection.state().service.store(), name);
    return error;
  }
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
  connection.state().ends.Count(clock.NowUs());
  LogAnswer(connection, answer);
}

asio::awaitable<void> Refuse(Connection& connection, ApiError error) {
  co_await connection.StopWatching();
  if (error.status == 429) error.retry_after_s = connection.state().RetryAfterS();
  HttpResponse response = ErrorResponse(error);
  if (!connection.gone()) co_await connection.Respond(std::move(response));
}

}  // namespace

asio::awaitable<void> AnswerGeneration(Connection& connection, Route route, std::string body) {
  ServerState& state = connection.state();
  const RequestScope scope(connection);
  std::function<void()> waker = scope.waker();
  PrepareContext context = {.unique_id = state.NextId(), .created_unix = std::time(nullptr), .wake = waker};
  const auto prepared = std::make_shared<std::optional<Prepared>>();
  const auto job = std::make_shared<WorkerJob>();
  job->work = [prepared, &service = state.service, route, body = std::move(body),
               context = std::move(context)]() mutable {
    *prepared = PrepareOrFail(service, route, std::move(body), context);
  };
  const JobEnd end = co_await RunOnWorker(connection, state.workers, job, std::move(waker));
  connection.ReleaseBody();
  if (end != JobEnd::kDone) {
    ApiError error =
        end == JobEnd::kFull ? TransportError(429, "too many requests are waiting to be read") : ShuttingDown();
    co_await Refuse(connection, std::move(error));
    co_return;
  }
  if (ApiError* error = std::get_if<ApiError>(&**prepared)) {
    co_await Refuse(connection, std::move(*error));
    co_return;
  }
  PreparedGeneration generation = std::move(std::get<PreparedGeneration>(**prepared));
  prepared->reset();
  co_await AnswerPrepared(connection, std::move(generation));
}

}  // namespace df::server
