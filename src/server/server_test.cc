#include "server/server_fixture.h"

namespace df::server {
namespace {

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
  options_.keys.api = {"secret"};
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

TEST_F(ServerTest, StartsNoneOfSeveralPromptsWhenOneDoesNotFit) {
  Start();
  const std::string body = R"({"model":"base","max_tokens":10,"prompt":["a","b",")" + std::string(991, 'c') + "\"]}";
  const std::string response = Ask(Post("/v1/completions", body, "Connection: close\r\n"));
  ExpectStatus(response, 400);
  EXPECT_NE(response.find(R"("param":"max_tokens","code":"context_length_exceeded")"), std::string::npos) << response;
  EXPECT_EQ(service_.counts.started, 0);
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
  service_.Add("slow", {.pieces = {"a"}, .ends_at_the_gate = true});
  options_.limits.comment_interval_ms = 20;
  Start();
  RawClient client(port());
  client.Send(Post("/v1/chat/completions", Chat("slow", R"(,"stream":true)"), "Connection: close\r\n"));
  const std::string begun = client.ReadUntil(": keep-alive\n\n");
  EXPECT_NE(begun, "");
  service_.gate.Open();
  EXPECT_EQ(TextOf(EventsOf(begun + client.ReadAll())), "a");
}

TEST_F(ServerTest, ReportsAStalledEngine) {
  Start();
  service_.healthy = false;
  ExpectStatus(Ask(Get("/health")), 503);
  ExpectStatus(Ask(Get("/ready")), 503);
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

}  // namespace
}  // namespace df::server
