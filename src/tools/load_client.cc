#include "tools/load_client.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>

#include "base/json.h"
#include "base/rng.h"
#include "tools/http_exchange.h"
#include "tools/sse_reader.h"

namespace df::tools {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using Steady = std::chrono::steady_clock;

constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);
constexpr size_t kMaxCauseBytes = 300;

double SecondsSince(Steady::time_point start) { return std::chrono::duration<double>(Steady::now() - start).count(); }

// Chunks of a streamed completion become times.
class TokenTimes final : public Receiver {
 public:
  TokenTimes(Steady::time_point sent, LoadOutcome& outcome) : sent_(sent), outcome_(outcome) {}

  Status Take(unsigned status, std::string_view bytes) override {
    if (status != 200) {
      if (cause_.size() < kMaxCauseBytes) cause_ += bytes.substr(0, kMaxCauseBytes - cause_.size());
      return Status::Ok();
    }
    events_.clear();
    DF_RETURN_IF_ERROR(reader_.Feed(bytes, events_));
    for (const std::string& event : events_) DF_RETURN_IF_ERROR(TakeEvent(event));
    return Status::Ok();
  }

  Status End(unsigned status) {
    if (status != 200) return Unavailable("status " + std::to_string(status) + ": " + cause_);
    if (!done_) return Unavailable("the stream ended without [DONE]");
    if (n_chunks_ == 0) return Unavailable("the stream held no token");
    if (outcome_.n_output == 0) outcome_.n_output = n_chunks_;
    return Status::Ok();
  }

 private:
  Status TakeEvent(const std::string& event) {
    if (event == "[DONE]") {
      done_ = true;
      return Status::Ok();
    }
    DF_ASSIGN_OR_RETURN(const Json json, ParseJson(event));
    if (!json.is_object()) return Unavailable("a chunk that is no object");
    if (JsonMemberOrNull(json, "error") != nullptr) return Unavailable("the stream ended with an error: " + event);
    if (const Json* usage = JsonMemberOrNull(json, "usage"); usage != nullptr && usage->is_object()) {
      DF_ASSIGN_OR_RETURN(const int64_t n, JsonIntOr(*usage, "completion_tokens", {.min = 0, .max = INT32_MAX}, 0));
      outcome_.n_output = static_cast<size_t>(n);
    }
    const Json* choices = JsonMemberOrNull(json, "choices");
    if (choices == nullptr || !choices->is_array() || choices->empty() || !(*choices)[0].is_object()) {
      return Status::Ok();
    }
    const Json& choice = (*choices)[0];
    DF_ASSIGN_OR_RETURN(const std::string text, JsonStringOr(choice, "text", ""));
    if (text.empty() && JsonMemberOrNull(choice, "finish_reason") != nullptr)
      return Status::Ok();  // says the end alone
    CountChunk();
    return Status::Ok();
  }

  void CountChunk() {
    const double now_s = SecondsSince(sent_);
    if (n_chunks_++ == 0) {
      outcome_.ttft_s = now_s;
    } else {
      outcome_.gap_s.push_back(now_s - outcome_.e2e_s);
    }
    outcome_.e2e_s = now_s;
  }

  Steady::time_point sent_;
  LoadOutcome& outcome_;
  SseReader reader_;
  std::vector<std::string> events_;
  std::string cause_;  // of a refusal, its beginning
  size_t n_chunks_ = 0;
  bool done_ = false;
};

std::string BodyOf(const LoadRequest& request, size_t vocab) {
  Json prompt = Json::array();
  for (size_t i = 0; i < request.n_prompt; ++i) prompt.push_back(1 + RandomBits(request.seed, i) % vocab);
  const Json body = {{"model", request.model},
                     {"prompt", std::move(prompt)},
                     {"max_tokens", request.n_output},
                     {"temperature", 0},
                     {"ignore_eos", true},
                     {"stream", true},
                     {"stream_options", {{"include_usage", true}}}};
  return DumpJson(body);
}

// All requests of one run, on the thread that calls.
class Load {
 public:
  Load(const Endpoint& endpoint, const std::vector<LoadRequest>& requests, const LoadOptions& options)
      : endpoint_(endpoint), requests_(requests), options_(options), start_(Steady::now()) {}

  Result<LoadResult> Run() {
    error_code error;
    addresses_ = asio::ip::tcp::resolver(io_).resolve(endpoint_.host, endpoint_.port, error);
    if (error) return NetworkError(endpoint_, error);
    result_.outcomes.resize(requests_.size());
    start_ = Steady::now();
    asio::co_spawn(io_, Arrive(), asio::detached);
    io_.run();
    result_.duration_s = SecondsSince(start_);
    return std::move(result_);
  }

 private:
  asio::awaitable<void> Arrive() {
    asio::steady_timer timer(io_);
    for (size_t i = 0; i < requests_.size(); ++i) {
      timer.expires_at(start_ + Nanoseconds(requests_[i].at_s));
      co_await timer.async_wait(kTuple);
      while (n_running_ >= options_.max_concurrency) {
        timer.expires_after(std::chrono::milliseconds(1));
        co_await timer.async_wait(kTuple);
      }
      ++n_running_;
      asio::co_spawn(io_, One(requests_[i], result_.outcomes[i]), asio::detached);
    }
  }

  asio::awaitable<void> One(const LoadRequest& request, LoadOutcome& outcome) {
    http::request<http::string_body> message = MakeRequest(endpoint_, http::verb::post, "/v1/completions");
    message.set(http::field::content_type, "application/json");
    message.body() = BodyOf(request, options_.vocab);
    message.prepare_payload();
    TokenTimes times(Steady::now(), outcome);
    try {
      const Result<unsigned> status = co_await Exchange(endpoint_, addresses_, message, options_.timeout_s, times);
      outcome.status = status.ok() ? times.End(*status) : status.status();
    } catch (const std::exception& error) {  // Asio's own: this request failed, the others go on
      outcome.status = Internal(error.what());
    }
    --n_running_;
  }

  const Endpoint& endpoint_;
  const std::vector<LoadRequest>& requests_;
  const LoadOptions& options_;
  asio::io_context io_;
  Addresses addresses_;
  Steady::time_point start_;
  size_t n_running_ = 0;
  LoadResult result_;
};

}  // namespace

Result<LoadResult> SendLoad(const Endpoint& endpoint, const std::vector<LoadRequest>& requests,
                            const LoadOptions& options) {
  try {
    return Load(endpoint, requests, options).Run();
  } catch (const std::exception& error) {  // Asio's own, for want of descriptors or memory
    return Internal(error.what());
  }
}

}  // namespace df::tools
