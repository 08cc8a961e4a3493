#include "server/server.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "server/raw_client.h"
#include "server/scripted_service.h"

namespace df::server {
namespace {

using std::chrono::milliseconds;

class ServerTest : public ::testing::Test {
 protected:
  ServerTest() {
    options_.port = 0;
    options_.version = "1.2.3";
    options_.limits.idle_timeout_ms = 3000;
    options_.limits.header_timeout_ms = 400;
    options_.limits.body_timeout_ms = 400;
    options_.limits.write_timeout_ms = 400;
    options_.limits.linger_ms = 200;
    options_.limits.comment_interval_ms = 100;
    options_.log = [this](const RequestLog& log) {
      const std::lock_guard lock(log_mutex_);
      logs_.push_back(log);
    };
    for (const char* name : {"base", "sql"}) metrics_.AddVariant({.name = name, .kind = "base"});
  }
  ~ServerTest() override { server_.reset(); }

  void Start() {
    Result<std::unique_ptr<Server>> started = Server::Start(options_, service_, metrics_);
    ASSERT_TRUE(started.ok()) << started.status().message();
    server_ = std::move(*started);
  }
  uint16_t port() const { return server_->port(); }
  std::string Ask(std::string_view bytes) {
    RawClient client(port());
    client.Send(bytes);
    return client.ReadAll();
  }
  static std::string Get(std::string_view path) {
    return "GET " + std::string(path) + " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
  }
  static std::string Post(std::string_view path, std::string_view body, std::string_view headers = "") {
    return "POST " + std::string(path) + " HTTP/1.1\r\nHost: a\r\n" + std::string(headers) +
           "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body);
  }
  static std::string Chat(std::string_view model, std::string_view more = "") {
    return R"({"model":")" + std::string(model) + R"(","messages":[{"role":"user","content":"hi"}])" +
           std::string(more) + "}";
  }
  std::string AskChat(std::string_view model, std::string_view more = "") {
    return Ask(Post("/v1/chat/completions", Chat(model, more), "Connection: close\r\n"));
  }
  // Whether `condition` comes true within 3 s.
  template <typename Condition>
  static bool Soon(const Condition& condition) {
    for (int i = 0; i < 300; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(milliseconds(10));
    }
    return condition();
  }
  static std::string BodyOf(const std::string& response) {
    const size_t at = response.find("\r\n\r\n");
    return at == std::string::npos ? "" : response.substr(at + 4);
  }
  // The `data:` payloads of a chunked stream; the chunk framing is removed first.
  static std::vector<std::string> EventsOf(const std::string& response) {
    std::string raw = BodyOf(response), stream;
    size_t at = 0;
    while (at < raw.size()) {
      const auto size = static_cast<size_t>(std::strtoul(raw.c_str() + at, nullptr, 16));
      at = raw.find("\r\n", at) + 2;
      stream += raw.substr(at, size);
      at += size + 2;
    }
    std::vector<std::string> events;
    for (size_t from = stream.find("data: "); from != std::string::npos; from = stream.find("data: ", from + 1)) {
      events.push_back(stream.substr(from + 6, stream.find("\n\n", from) - from - 6));
    }
    return events;
  }
  static std::string TextOf(const std::vector<std::string>& events) {
    std::string text;
    for (const std::string& event : events) {
      const Result<Json> json = ParseJson(event);
      if (!json.ok() || !json->contains("choices") || (*json)["choices"].empty()) continue;
      const Json& choice = (*json)["choices"][0];
      text += choice.contains("delta") ? choice["delta"].value("content", "") : choice.value("text", "");
    }
    return text;
  }

  ServerOptions options_;
  ScriptedService service_;
  ServerMetrics metrics_{"base"};
  std::unique_ptr<Server> server_;
  std::mutex log_mutex_;
  std::vector<RequestLog> logs_;
};

void ExpectStatus(const std::string& response, int status) {
  EXPECT_TRUE(response.starts_with("HTTP/1.1 " + std::to_string(status) + " ")) << response.substr(0, 300);
}

TEST_F(ServerTest, AnswersAChat) {
  Start();
  const std::string response = AskChat("base");
  ExpectStatus(response, 200);
  const Result<Json> body = ParseJson(BodyOf(response));
  ASSERT_TRUE(body.ok());
  EXPECT_TRUE((*body)["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ((*body)["object"], "chat.completion");
  EXPECT_EQ((*body)["model"], "base");
  EXPECT_EQ((*body)["system_fingerprint"], "fp_test");
  EXPECT_EQ((*body)["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ((*body)["choices"][0]["message"]["content"], "Hello, world");
  EXPECT_EQ((*body)["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ((*body)["usage"]["completion_tokens"], 3);
}

TEST_F(ServerTest, StreamsAChatFromRoleToDone) {
  Start();
  const std::string response = AskChat("base", R"(,"stream":true,"stream_options":{"include_usage":true})");
  ExpectStatus(response, 200);
  EXPECT_NE(response.find("Content-Type: text/event-stream"), std::string::npos);
  const std::vector<std::string> events = EventsOf(response);
  ASSERT_GE(events.size(), 5U);
  EXPECT_NE(events.front().find(R"("role":"assistant")"), std::string::npos);
  EXPECT_EQ(TextOf(events), "Hello, world");
  EXPECT_EQ(events.back(), "[DONE]");
  const Result<Json> usage = ParseJson(events[events.size() - 2]);
  ASSERT_TRUE(usage.ok());
  EXPECT_TRUE((*usage)["choices"].empty());
  EXPECT_EQ((*usage)["usage"]["completion_tokens"], 3);
  const Result<Json> last = ParseJson(events[events.size() - 3]);
  ASSERT_TRUE(last.ok());
  EXPECT_EQ((*last)["choices"][0]["finish_reason"], "stop");
  EXPECT_TRUE((*last)["usage"].is_null());
}

TEST_F(ServerTest, CompletesSeveralPromptsAsSeveralChoices) {
  Start();
  const std::string body = R"({"model":"sql","prompt":["a","bc"]})";
  const std::string response = Ask(Post("/v1/completions", body, "Connection: close\r\n"));
  ExpectStatus(response, 200);
  const Result<Json> json = ParseJson(BodyOf(response));
  ASSERT_TRUE(json.ok());
  ASSERT_EQ((*json)["choices"].size(), 2U);
  EXPECT_EQ((*json)["choices"][1]["index"], 1);
  EXPECT_EQ((*json)["choices"][1]["text"], "SELECT 1");
  EXPECT_EQ((*json)["usage"]["prompt_tokens"], 3);
  EXPECT_EQ((*json)["usage"]["completion_tokens"], 4);
}

TEST_F(ServerTest, StreamsToAnHttp10ClientWithoutChunks) {
  Start();
  const std::string body = R"({"model":"sql","prompt":"a","stream":true})";
  const std::string response =
      Ask("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  ExpectStatus(response, 200);
  EXPECT_EQ(response.find("chunked"), std::string::npos);
  EXPECT_TRUE(response.ends_with("data: [DONE]\n\n"));
}

TEST_F(ServerTest, ListsAndRetrievesModels) {
  Start();
  const Result<Json> list = ParseJson(BodyOf(Ask(Get("/v1/models"))));
  ASSERT_TRUE(list.ok());
  EXPECT_EQ((*list)["data"].size(), 2U);
  EXPECT_EQ((*list)["data"][0]["max_model_len"], 1000);
  ExpectStatus(Ask(Get("/v1/models/sql")), 200);
  ExpectStatus(Ask(Get("/v1/models/s%71l")), 200);
  const std::string missing = Ask(Get("/v1/models/nobody"));
  ExpectStatus(missing, 404);
  EXPECT_NE(missing.find(R"("code":"model_not_found")"), std::string::npos);
}

TEST_F(ServerTest, AnswersProbesWithoutAKeyAndV1OnlyWithIt) {
  options_.api_keys = {"secret"};
  Start();
  for (const char* path : {"/health", "/ready", "/ping", "/version", "/metrics"}) ExpectStatus(Ask(Get(path)), 200);
  for (const char* path : {"/v1/models", "/v1/models/base", "/v1/chat/completions", "/v1/anything"}) {
    const std::string response = Ask(Get(path));
    ExpectStatus(response, 401);
    EXPECT_NE(response.find(R"("code":"invalid_api_key")"), std::string::npos);
  }
  const std::string start = "GET /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: ";
  ExpectStatus(Ask(start + "Bearer secreu\r\n\r\n"), 401);
  ExpectStatus(Ask(start + "Bearer secret\r\n\r\n"), 200);
}

TEST_F(ServerTest, RefusesAWrongKeyBeforeTheBodyIsSent) {
  options_.api_keys = {"secret"};
  Start();
  RawClient client(port());
  client.Send("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
  ExpectStatus(client.ReadAll(), 401);
}

TEST_F(ServerTest, NeverAnswersAnUnknownModelFromTheBase) {
  Start();
  const std::string response = AskChat("nobody");
  ExpectStatus(response, 404);
  EXPECT_NE(response.find(R"("code":"model_not_found")"), std::string::npos);
  EXPECT_EQ(service_.counts.started, 0);
}

TEST_F(ServerTest, SaysWhichRouteAndMethodExist) {
  Start();
  for (const char* path : {"/", "/v1", "/v1/", "/v1/../admin", "/v1/%2e%2e/admin", "/%00", "/v1/models/", "/HEALTH",
                           "/health/", "//health", "/v1/models/%00", "/v1/models/%"}) {
    ExpectStatus(Ask(Get(path)), 404);
  }
  const std::string get = Ask(Get("/v1/chat/completions"));
  ExpectStatus(get, 405);
  EXPECT_NE(get.find("Allow: POST\r\n"), std::string::npos);
  ExpectStatus(Ask("DELETE /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"), 405);
  ExpectStatus(Ask("OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: a\r\nOrigin: http://b\r\nConnection: close\r\n\r\n"),
               405);
  const std::string head = Ask("HEAD /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  ExpectStatus(head, 200);
  EXPECT_EQ(BodyOf(head), "");
  ExpectStatus(Ask("GET http://a/health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"), 200);
}

TEST_F(ServerTest, EchoesTheRequestIdAndMakesOneElse) {
  Start();
  const std::string echoed = Ask("GET /health HTTP/1.1\r\nHost: a\r\nX-Request-Id: my-id\r\nConnection: close\r\n\r\n");
  EXPECT_NE(echoed.find("X-Request-Id: my-id\r\n"), std::string::npos);
  EXPECT_NE(Ask(Get("/health")).find("X-Request-Id: "), std::string::npos);
}

TEST_F(ServerTest, RefusesPromptAndAnswerBeyondTheContext) {
  Start();
  const std::string long_prompt = R"({"model":"base","prompt":")" + std::string(1000, 'a') + "\"}";
  const std::string response = Ask(Post("/v1/completions", long_prompt, "Connection: close\r\n"));
  ExpectStatus(response, 400);
  EXPECT_NE(response.find(R"("code":"context_length_exceeded")"), std::string::npos);
  for (const auto& [n_prompt, max_tokens, status] :
       {std::tuple{900, 100, 200}, std::tuple{900, 101, 400}, std::tuple{1, 1000, 400}, std::tuple{999, 1, 200}}) {
    const std::string body = R"({"model":"base","prompt":")" + std::string(static_cast<size_t>(n_prompt), 'a') +
                             R"(","max_tokens":)" + std::to_string(max_tokens) + "}";
    ExpectStatus(Ask(Post("/v1/completions", body, "Connection: close\r\n")), status);
  }
}

TEST_F(ServerTest, TurnsAFailureBeforeTheFirstTokenIntoAnHttpError) {
  service_.Add("broken", {.pieces = {}, .failure = Internal("/secret/path went wrong")});
  service_.Add("full", {.refusal = ResourceExhausted("1024 requests are queued")});
  Start();
  for (const char* more : {"", R"(,"stream":true)"}) {
    const std::string broken = AskChat("broken", more);
    ExpectStatus(broken, 500);
    EXPECT_EQ(broken.find("/secret"), std::string::npos);
    const std::string full = AskChat("full", more);
    ExpectStatus(full, 429);
    EXPECT_NE(full.find("Retry-After: "), std::string::npos);
  }
}

TEST_F(ServerTest, ReportsALaterFailureInsideTheStream) {
  service_.Add("breaks", {.pieces = {"a"}, .pause = milliseconds(30), .failure = Internal("x")});
  Start();
  const std::vector<std::string> events = EventsOf(AskChat("breaks", R"(,"stream":true)"));
  ASSERT_GE(events.size(), 2U);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_NE(events[events.size() - 2].find(R"({"error":{)"), std::string::npos);
}

TEST_F(ServerTest, SendsCommentsWhileThereIsNothingToSay) {
  service_.Add("slow", {.pieces = {"a"}, .pause = milliseconds(350)});
  Start();
  const std::string response = AskChat("slow", R"(,"stream":true)");
  EXPECT_NE(response.find(": keep-alive\n\n"), std::string::npos);
  EXPECT_EQ(TextOf(EventsOf(response)), "a");
}

TEST_F(ServerTest, AnswersPipelinedRequestsInOrder) {
  Start();
  RawClient client(port());
  std::string bytes;
  for (int i = 0; i < 1000; ++i) {
    bytes += "GET /health HTTP/1.1\r\nHost: a\r\nX-Request-Id: r" + std::to_string(i) + "\r\n\r\n";
  }
  std::thread sender([&] { client.Send(bytes); });
  for (int i = 0; i < 1000; ++i) {
    const std::string response = client.ReadResponse();
    ASSERT_NE(response.find("X-Request-Id: r" + std::to_string(i) + "\r\n"), std::string::npos) << response;
  }
  sender.join();
}

TEST_F(ServerTest, AnswersARequestPipelinedBehindAGeneration) {
  service_.Add("slow", {.pieces = {"a", "b"}, .pause = milliseconds(30)});
  Start();
  RawClient client(port());
  client.Send(Post("/v1/chat/completions", Chat("slow")));
  std::this_thread::sleep_for(milliseconds(20));
  client.Send(Get("/health"));
  ExpectStatus(client.ReadResponse(), 200);
  const std::string second = client.ReadResponse();
  ExpectStatus(second, 200);
  EXPECT_NE(second.find(R"({"status":"ok"})"), std::string::npos);
}

TEST_F(ServerTest, CancelsWhenTheClientLeavesBeforeOrDuringTheAnswer) {
  service_.Add("hangs", {.pieces = {"a"}, .hangs = true});
  service_.Add("silent", {.pieces = {}, .hangs = true});
  Start();
  int cancelled = 0;
  for (const char* model : {"hangs", "silent"}) {
    for (const char* more : {"", R"(,"stream":true)"}) {
      RawClient client(port());
      client.Send(Post("/v1/chat/completions", Chat(model, more)));
      ASSERT_TRUE(Soon([&] { return service_.counts.live == 1; }));
      client.Close();
      ASSERT_TRUE(Soon([&] { return service_.counts.live == 0; })) << model << more;
      EXPECT_EQ(service_.counts.cancelled, ++cancelled);
    }
  }
  EXPECT_NE(metrics_.Render({}).find("vllm:request_success_total{finished_reason=\"abort\",model_name=\"base\"} 4"),
            std::string::npos);
}

TEST_F(ServerTest, CancelsWhenTheClientLeavesWhileAWorkerIsBusy) {
  service_.Add("slow-start", {.hangs = true, .start_takes = milliseconds(200)});
  Start();
  {
    RawClient client(port());
    client.Send(Post("/v1/chat/completions", Chat("slow-start")));
    std::this_thread::sleep_for(milliseconds(50));
  }
  ASSERT_TRUE(Soon([&] { return service_.counts.started == 1; }));
  EXPECT_TRUE(Soon([&] { return service_.counts.live == 0; }));
}

TEST_F(ServerTest, KeepsAnsweringWhileWorkersAreBusy) {
  service_.Add("slow-start", {.start_takes = milliseconds(300)});
  options_.limits.max_queued_jobs = 2;
  Start();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<RawClient>(port()));
    clients.back()->Send(Post("/v1/chat/completions", Chat("slow-start"), "Connection: close\r\n"));
    std::this_thread::sleep_for(milliseconds(10));
  }
  const auto start = std::chrono::steady_clock::now();
  ExpectStatus(Ask(Get("/health")), 200);
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(200));
  int n_ok = 0, n_refused = 0;
  for (const auto& client : clients) {
    const std::string response = client->ReadAll();
    n_ok += response.starts_with("HTTP/1.1 200") ? 1 : 0;
    n_refused += response.starts_with("HTTP/1.1 429") ? 1 : 0;
  }
  EXPECT_EQ(n_ok, 4);
  EXPECT_EQ(n_refused, 4);
}

TEST_F(ServerTest, DropsAReaderThatTakesNothing) {
  Script flood{.pieces = std::vector<std::string>(400, std::string(100'000, 'x'))};
  service_.Add("flood", std::move(flood));
  Start();
  RawClient client(port(), 4096);
  client.Send(Post("/v1/chat/completions", Chat("flood", R"(,"stream":true)")));
  ASSERT_TRUE(Soon([&] { return service_.counts.live == 1; }));
  EXPECT_TRUE(Soon([&] { return service_.counts.live == 0; }));
  ExpectStatus(Ask(Get("/health")), 200);
}

TEST_F(ServerTest, TimesOutSlowHeadersAndBodies) {
  Start();
  RawClient header(port());
  header.Send("GET /health HT");
  RawClient body(port());
  body.Send("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
  ExpectStatus(header.ReadAll(), 408);
  ExpectStatus(body.ReadAll(), 408);
}

TEST_F(ServerTest, DripsDoNotExtendADeadline) {
  Start();
  RawClient client(port());
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 40 && client.Send("G"); ++i) {
    std::this_thread::sleep_for(milliseconds(50));
    if (client.WaitClosed(1)) break;
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(1500));
}

TEST_F(ServerTest, ClosesIdleConnectionsWithoutAWord) {
  options_.limits.idle_timeout_ms = 200;
  Start();
  RawClient client(port());
  EXPECT_EQ(client.ReadAll(), "");
  EXPECT_TRUE(client.WaitClosed(1000));
}

TEST_F(ServerTest, AnswersBrokenHttpWith400AndCloses) {
  Start();
  for (const std::string_view bytes :
       {"GET / HTTP/1.1\nHost: a\n\n", "BAD\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"}) {
    RawClient client(port());
    client.Send(bytes);
    const std::string response = client.ReadAll();
    ExpectStatus(response, 400);
    EXPECT_NE(response.find("Connection: close"), std::string::npos);
    EXPECT_TRUE(client.WaitClosed(1000));
  }
}

TEST_F(ServerTest, AnswersTooMuchHeaderOrBody) {
  options_.limits.max_body_bytes = 10000;
  Start();
  ExpectStatus(Ask("GET / HTTP/1.1\r\nHost: a\r\nX: " + std::string(100'000, 'a') + "\r\n\r\n"), 431);
  ExpectStatus(Ask(Post("/v1/completions", std::string(10001, ' '))), 413);
}

TEST_F(ServerTest, ReadsAHugeBodyOfTinyChunksInFlatMemory) {
  options_.limits.body_timeout_ms = 20000;
  options_.limits.max_body_bytes = size_t{1} << 20;
  Start();
  RawClient client(port());
  client.Send("POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
  std::string piece;
  for (int i = 0; i < 1000; ++i) piece += "6\r\nabcdef\r\n";
  size_t n_sent = 0;
  while (n_sent < 400 && client.Send(piece)) ++n_sent;
  ExpectStatus(client.ReadAll(), 413);
}

TEST_F(ServerTest, ClosesOnOtherProtocolsWithoutAWord) {
  Start();
  EXPECT_EQ(Ask("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "");
  EXPECT_EQ(Ask("\x16\x03\x01\x02\x00\x01\x00"), "");
}

TEST_F(ServerTest, SendsContinueBeforeABodyThatWaitsForIt) {
  Start();
  const std::string body = R"({"model":"sql","prompt":"a"})";
  RawClient client(port());
  client.Send("POST /v1/completions HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send(body);
  ExpectStatus(client.ReadResponse(), 200);
}

TEST_F(ServerTest, MakesRoomForNewConnectionsByClosingIdleOnes) {
  options_.limits.max_connections = 20;
  Start();
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 200; ++i) idle.push_back(std::make_unique<RawClient>(port()));
  ExpectStatus(Ask(Get("/health")), 200);
  ExpectStatus(AskChat("base"), 200);
}

TEST_F(ServerTest, AnswersOnlyProbesWhenAllConnectionsAreBusy) {
  service_.Add("hangs", {.hangs = true});
  options_.limits.max_connections = 4;
  Start();
  std::vector<std::unique_ptr<RawClient>> busy;
  for (int i = 0; i < 4; ++i) {
    busy.push_back(std::make_unique<RawClient>(port()));
    busy.back()->Send(Post("/v1/chat/completions", Chat("hangs")));
  }
  ASSERT_TRUE(Soon([&] { return service_.counts.live == 4; }));
  ExpectStatus(Ask(Get("/health")), 200);
  ExpectStatus(AskChat("base"), 503);
}

TEST_F(ServerTest, RefusesBodiesBeyondWhatAllTogetherMayHold) {
  options_.limits.max_body_bytes_total = 100'000;
  options_.limits.body_timeout_ms = 3000;
  Start();
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 90000\r\n\r\n";
  RawClient first(port()), second(port());
  first.Send(head + std::string(80'000, ' '));
  std::this_thread::sleep_for(milliseconds(100));
  second.Send(head + std::string(80'000, ' '));
  ExpectStatus(second.ReadAll(), 503);
}

TEST_F(ServerTest, ReportsAStalledEngine) {
  Start();
  service_.healthy = false;
  ExpectStatus(Ask(Get("/health")), 503);
  ExpectStatus(Ask(Get("/ready")), 503);
}

TEST_F(ServerTest, DrainsThenEnds) {
  service_.Add("slow", {.pieces = {"a", "b", "c"}, .pause = milliseconds(100)});
  Start();
  RawClient client(port());
  client.Send(Post("/v1/chat/completions", Chat("slow", R"(,"stream":true)")));
  ASSERT_TRUE(Soon([&] { return service_.counts.live == 1; }));
  server_->Shutdown(5000);
  std::this_thread::sleep_for(milliseconds(30));
  ExpectStatus(Ask(Get("/ready")), 503);
  ExpectStatus(Ask(Get("/health")), 200);
  ExpectStatus(AskChat("base"), 503);
  EXPECT_EQ(TextOf(EventsOf(client.ReadAll())), "abc");
  EXPECT_TRUE(server_->WaitEnded(3000));
}

TEST_F(ServerTest, CancelsWhatDoesNotEndInTime) {
  service_.Add("hangs", {.pieces = {"a"}, .hangs = true});
  Start();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 50; ++i) {
    clients.push_back(std::make_unique<RawClient>(port()));
    clients.back()->Send(Post("/v1/chat/completions", Chat("hangs", i % 2 == 0 ? R"(,"stream":true)" : "")));
  }
  ASSERT_TRUE(Soon([&] { return service_.counts.live == 50; }));
  server_->Shutdown(100);
  EXPECT_TRUE(server_->WaitEnded(4000));
  EXPECT_EQ(service_.counts.live, 0);
  const std::string streamed = clients[0]->ReadAll();
  EXPECT_NE(streamed.find(R"("code":"shutting_down")"), std::string::npos);
  EXPECT_TRUE(streamed.ends_with("0\r\n\r\n"));
  ExpectStatus(clients[1]->ReadAll(), 503);
}

TEST_F(ServerTest, EndsAtOnceWhenNothingRuns) {
  Start();
  RawClient idle(port());
  server_->Shutdown(60'000);
  EXPECT_TRUE(server_->WaitEnded(1000));
}

TEST_F(ServerTest, RefusesAnAddressThatIsNotHere) {
  options_.host = "192.0.2.1";
  EXPECT_EQ(Server::Start(options_, service_, metrics_).status().code(), StatusCode::kIo);
}

TEST_F(ServerTest, LogsOneLineARequestWithoutItsText) {
  Start();
  AskChat("sql");
  ASSERT_TRUE(Soon([&] {
    const std::lock_guard lock(log_mutex_);
    return logs_.size() == 1;
  }));
  EXPECT_EQ(logs_[0].status, 200);
  EXPECT_EQ(logs_[0].variant, "sql");
  EXPECT_EQ(logs_[0].finish, "stop");
  EXPECT_EQ(logs_[0].completion_tokens, 2U);
}

TEST_F(ServerTest, CountsRequestsAndTokensInMetrics) {
  Start();
  AskChat("sql");
  AskChat("nobody");
  ASSERT_TRUE(Soon([&] { return service_.counts.live == 0; }));
  const std::string text = Ask(Get("/metrics"));
  EXPECT_NE(text.find("vllm:request_success_total{finished_reason=\"stop\",model_name=\"base\"} 1"), std::string::npos);
  EXPECT_NE(text.find("deltafold_variant_generation_tokens_total{variant=\"sql\"} 2"), std::string::npos);
  EXPECT_NE(text.find("vllm:time_to_first_token_seconds_count{model_name=\"base\"} 1"), std::string::npos);
  EXPECT_NE(text.find("vllm:num_requests_running{model_name=\"base\"} 0"), std::string::npos);
  EXPECT_EQ(text.find("nobody"), std::string::npos);
}

TEST_F(ServerTest, ServesManyClientsAtOnce) {
  Start();
  std::atomic<int> n_right{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 10; ++i) {
        const bool stream = (t + i) % 2 == 0;
        const std::string response = AskChat(t % 2 == 0 ? "base" : "sql", stream ? R"(,"stream":true)" : "");
        const std::string expected = t % 2 == 0 ? "Hello, world" : "SELECT 1";
        if (stream ? TextOf(EventsOf(response)) == expected : response.find(expected) != std::string::npos) ++n_right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(n_right, 80);
}

}  // namespace
}  // namespace df::server
