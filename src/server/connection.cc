#include "server/connection.h"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include "base/clock.h"
#include "base/heap.h"
#include "base/rng.h"
#include "server/sse.h"

namespace df::server {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
constexpr auto kTuple = asio::as_tuple(asio::use_awaitable);

// From here on a body and what is made of it are worth giving back: 256 pages, and only a large body has as many.
constexpr size_t kLargeBodyBytes = size_t{1} << 20;

}  // namespace

std::string ServerState::NextId() {
  char text[33];
  const uint64_t k = 2 * n_ids++;
  std::snprintf(text, sizeof(text), "%016llx%016llx", static_cast<unsigned long long>(RandomBits(id_seed, k)),
                static_cast<unsigned long long>(RandomBits(id_seed, k + 1)));
  return text;
}

void ServerState::ReturnMemorySoon() {
  if (returning_memory.exchange(true)) return;
  const bool submitted = workers.Submit([this] {
    returning_memory = false;  // first: what is freed from here on wants another turn
    ReturnFreeMemory();
  });
  if (!submitted) returning_memory = false;
}

int64_t ServerState::RetryAfterS() const { return ends.RetryAfterS(n_requests, SteadyClock().NowUs()); }

bool ServerState::CloseOneIdle() {
  if (idle.empty()) return false;
  Connection* longest = idle.front();
  idle.pop_front();
  longest->Stop();
  return true;
}

Connection::Connection(asio::ip::tcp::socket socket, ServerState& state, Options options)
    : socket_(std::move(socket)),
      state_(state),
      options_(options),
      signal_(socket_.get_executor()),
      deadline_(socket_.get_executor()) {}

asio::awaitable<void> Connection::Run() {
  const auto self = shared_from_this();
  state_.open.push_back(this);
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  try {
    while (!stopped_ && !state_.closed && co_await ServeOne()) {
    }
    if (unread_body_ && !gone_) co_await Linger();
  } catch (const std::exception&) {
    // Out of memory, or of whatever Asio needs: this connection ends, the others go on.
    gone_ = true;
  }
  ClearDeadline();
  ReleaseBody();
  socket_.close(ignored);
  state_.idle.remove(this);
  state_.open.remove(this);
  if (state_.on_change) state_.on_change();
}

void Connection::Stop() {
  stopped_ = true;
  error_code ignored;
  socket_.cancel(ignored);
}

void Connection::SetDeadline(int64_t ms) {
  timed_out_ = false;
  const uint64_t epoch = ++deadline_epoch_;
  deadline_.expires_after(std::chrono::milliseconds(ms));
  deadline_.async_wait([this, self = shared_from_this(), epoch](error_code error) {
    if (error || epoch != deadline_epoch_) return;
    timed_out_ = true;
    error_code ignored;
    socket_.cancel(ignored);
  });
}

void Connection::ClearDeadline() {
  ++deadline_epoch_;
  deadline_.cancel();
}

asio::awaitable<bool> Connection::ReadSome() {
  if (timed_out_ || stopped_) co_return false;
  const size_t before = input_.size();
  input_.resize(before + kReadBytes);
  const auto [error, n_bytes] =
      co_await socket_.async_read_some(asio::buffer(input_.data() + before, kReadBytes), kTuple);
  input_.resize(before + n_bytes);
  co_return !error;
}

asio::awaitable<bool> Connection::ServeOne() {
  reader_.emplace(state_.options.limits);
  log_ = {};
  arrival_ = std::chrono::steady_clock::now();
  if (!co_await ReadHeader()) {
    if (log_.status != 0) FinishRequest();
    co_return false;
  }
  BeginRequest();
  const RouteMatch match = MatchRoute(request_.method, request_.path);
  log_.probe = match.is_probe;
  if (std::optional<HttpResponse> refusal = RefusalBeforeBody(match)) {
    if (request_.has_body) {
      unread_body_ = true;
      keep_alive_ = false;
    }
    co_await Respond(std::move(*refusal));
  } else {
    if (request_.has_body && IsAdmin(match.route)) reader_->LimitBody(state_.options.limits.max_admin_body_bytes);
    if (request_.has_body && !co_await ReadBody()) {
      FinishRequest();
      co_return false;
    }
    co_await AnswerRoute(match);
  }
  FinishRequest();
  co_return keep_alive_ && !gone_;
}

// False when the connection is to be closed; what had to be said is said.
asio::awaitable<bool> Connection::ReadHeader() {
  bool started = !input_.empty();
  SetDeadline(started ? state_.options.limits.header_timeout_ms : state_.options.limits.idle_timeout_ms);
  state_.idle.push_back(this);
  bool alive = true;
  while (alive) {
    const size_t used = reader_->Feed(input_);
    input_.erase(0, used);
    if (reader_->state() != HttpReader::State::kHeader) break;
    if (used > 0) continue;
    alive = co_await ReadSome();
    if (!started && !input_.empty()) {
      started = true;
      SetDeadline(state_.options.limits.header_timeout_ms);
    }
  }
  state_.idle.remove(this);
  ClearDeadline();
  if (reader_->state() == HttpReader::State::kRefused) {
    co_await Refuse(reader_->refused_status(), reader_->refused_reason());
    co_return false;
  }
  if (timed_out_ && started && !alive) {
    co_await Refuse(408, "the header did not arrive in time");
    co_return false;
  }
  co_return alive && reader_->state() != HttpReader::State::kForeign;
}

asio::awaitable<bool> Connection::ReadBody() {
  const ServerLimits& limits = state_.options.limits;
  SetDeadline(limits.body_timeout_ms);
  if (request_.expects_continue) {
    co_await asio::async_write(socket_, asio::buffer(kContinue), kTuple);
  }
  int refused_status = 0;
  std::string refused_reason;
  bool alive = true;
  while (alive && refused_status == 0) {
    const size_t used = reader_->Feed(input_);
    input_.erase(0, used);
    if (reader_->state() != HttpReader::State::kBody) break;
    ReserveBody();
    if (state_.body_bytes > limits.max_body_bytes_total) {
      refused_status = 503;
      refused_reason = "too many large requests at once";
    } else {
      alive = co_await ReadSome();
    }
  }
  ClearDeadline();
  if (reader_->state() == HttpReader::State::kDone) {
    request_.body = std::move(reader_->request().body);
    co_return true;
  }
  if (reader_->state() == HttpReader::State::kRefused) {
    refused_status = reader_->refused_status();
    refused_reason = reader_->refused_reason();
  } else if (timed_out_) {
    refused_status = 408;
    refused_reason = "the body did not arrive in time";
  }
  reader_.reset();  // before the answer, which the client may be slow to take
  ReleaseBody();
  if (refused_status != 0) co_await Refuse(refused_status, refused_reason);
  co_return false;
}

void Connection::ReserveBody() {
  state_.body_bytes += reader_->body_bytes() - reserved_body_bytes_;
  reserved_body_bytes_ = reader_->body_bytes();
}

void Connection::ReleaseBody() {
  state_.body_bytes -= reserved_body_bytes_;
  if (reserved_body_bytes_ >= kLargeBodyBytes) state_.ReturnMemorySoon();
  reserved_body_bytes_ = 0;
}

void Connection::BeginRequest() {
  arrival_ = std::chrono::steady_clock::now();
  timed_out_ = response_started_ = false;
  HttpRequest& read = reader_->request();
  request_ = std::move(read);
  if (request_.request_id.empty()) request_.request_id = state_.NextId();
  keep_alive_ = request_.keep_alive && !state_.draining;
  log_.request_id = request_.request_id;
  log_.method = request_.method.substr(0, 16);
  log_.path = request_.path.substr(0, 128);
}

void Connection::FinishRequest() {
  ReleaseBody();
  if (!state_.options.log) return;
  log_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - arrival_).count();
  state_.options.log(log_);
}

asio::awaitable<void> Connection::AnswerRoute(RouteMatch match) {
  if (IsGeneration(match.route)) {
    std::string body = std::move(request_.body);
    co_await AnswerGeneration(*this, match.route, std::move(body));
    co_return;
  }
  if (IsAdmin(match.route)) {
    AdminRequest admin{.route = match.route, .target = std::string(match.target), .body = std::move(request_.body)};
    co_await AnswerAdminRequest(*this, std::move(admin));
    co_return;
  }
  std::string().swap(request_.body);  // these routes have no use for it
  ReleaseBody();
  const RouteContext context = {.service = state_.service,
                                .metrics = state_.metrics,
                                .version = state_.options.version,
                                .draining = state_.draining};
  HttpResponse response = Answer(context, match);
  co_await Respond(std::move(response));
}

asio::awaitable<void> Connection::Refuse(int status, std::string_view reason) {
  keep_alive_ = false;
  unread_body_ = true;
  timed_out_ = false;
  request_.method.clear();
  if (request_.request_id.empty()) request_.request_id = state_.NextId();
  HttpResponse response = ErrorResponse(TransportError(status, std::string(reason)));
  co_await Respond(std::move(response));
}

asio::awaitable<void> Connection::Write(std::string bytes) {
  if (gone_) co_return;
  SetDeadline(state_.options.limits.write_timeout_ms);
  const auto [error, n_bytes] = co_await asio::async_write(socket_, asio::buffer(bytes), kTuple);
  ClearDeadline();
  if (error) gone_ = true;
}

asio::awaitable<void> Connection::Respond(HttpResponse response) {
  response_started_ = true;
  log_.status = response.status;
  response.headers.emplace_back("X-Request-Id", request_.request_id);
  std::string bytes = RenderHead(response, {.framing = BodyFraming::kLength, .keep_alive = keep_alive_});
  if (request_.method != "HEAD") bytes += response.body;
  co_await Write(std::move(bytes));
}

asio::awaitable<void> Connection::StartStream() {
  response_started_ = true;
  log_.status = 200;
  HttpResponse response;
  response.content_type = kSseContentType;
  response.headers.emplace_back("Cache-Control", "no-cache");
  response.headers.emplace_back("X-Accel-Buffering", "no");
  response.headers.emplace_back("X-Request-Id", request_.request_id);
  if (!request_.http_1_1) keep_alive_ = false;
  const BodyFraming framing = request_.http_1_1 ? BodyFraming::kChunked : BodyFraming::kUntilClose;
  std::string head = RenderHead(response, {.framing = framing, .keep_alive = keep_alive_});
  co_await Write(std::move(head));
}

asio::awaitable<void> Connection::WriteStreamed(std::string_view data) {
  // Named: GCC 12 destroys a temporary inside a co_await expression twice.
  std::string bytes = request_.http_1_1 ? RenderChunk(data) : std::string(data);
  co_await Write(std::move(bytes));
}

asio::awaitable<void> Connection::EndStream() {
  if (!request_.http_1_1) co_return;
  std::string last_chunk = "0\r\n\r\n";
  co_await Write(std::move(last_chunk));
}

asio::awaitable<void> Connection::Linger() {
  error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  SetDeadline(state_.options.limits.linger_ms);
  while (true) {
    input_.clear();
    if (!co_await ReadSome()) break;
  }
}

}  // namespace df::server
