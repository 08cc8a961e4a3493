// What clients may do to a server: leave, stall, send nonsense, send too much, while it runs or ends.
#include "server/server_fixture.h"

namespace df::server {
namespace {

using ServerLimitsTest = ServerTest;

TEST_F(ServerLimitsTest, RefusesAWrongKeyBeforeTheBodyIsSent) {
  options_.keys.api = {"secret"};
  Start();
  RawClient client(port());
  client.Send("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
  ExpectStatus(client.ReadAll(), 401);
}

TEST_F(ServerLimitsTest, AnswersPipelinedRequestsInOrder) {
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

TEST_F(ServerLimitsTest, AnswersARequestPipelinedBehindAGeneration) {
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

TEST_F(ServerLimitsTest, CancelsWhenTheClientLeavesBeforeOrDuringTheAnswer) {
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

TEST_F(ServerLimitsTest, CancelsWhenTheClientLeavesWhileAWorkerIsBusy) {
  service_.Add("slow-start", {.hangs = true, .tokenises_at_the_gate = true});
  Start();
  {
    RawClient client(port());
    client.Send(Post("/v1/chat/completions", Chat("slow-start")));
    ASSERT_TRUE(Soon([&] { return service_.counts.tokenising == 1; }));
  }
  service_.gate.Open();
  ASSERT_TRUE(Soon([&] { return service_.counts.started == 1; }));
  EXPECT_TRUE(Soon([&] { return service_.counts.live == 0; }));
}

TEST_F(ServerLimitsTest, KeepsAnsweringWhileWorkersAreBusy) {
  service_.Add("slow-start", {.tokenises_at_the_gate = true});
  options_.limits.n_workers = 2;
  options_.limits.max_queued_jobs = 2;
  Start();
  std::vector<std::unique_ptr<RawClient>> clients;
  const auto ask = [&] {
    clients.push_back(std::make_unique<RawClient>(port()));
    clients.back()->Send(Post("/v1/chat/completions", Chat("slow-start"), "Connection: close\r\n"));
  };
  for (int i = 0; i < 2; ++i) ask();
  ASSERT_TRUE(Soon([&] { return service_.counts.tokenising == 2; }));
  for (int i = 0; i < 6; ++i) ask();  // two of them wait in the queue
  ASSERT_TRUE(Soon([&] {
    const std::lock_guard lock(log_mutex_);
    return logs_.size() == 4;  // refused
  }));
  ExpectStatus(Ask(Get("/health")), 200);
  service_.gate.Open();
  int n_ok = 0, n_refused = 0;
  for (const auto& client : clients) {
    const std::string response = client->ReadAll();
    n_ok += response.starts_with("HTTP/1.1 200") ? 1 : 0;
    n_refused += response.starts_with("HTTP/1.1 429") ? 1 : 0;
  }
  EXPECT_EQ(n_ok, 4);
  EXPECT_EQ(n_refused, 4);
}

TEST_F(ServerLimitsTest, DropsAReaderThatTakesNothing) {
  Script flood{.pieces = std::vector<std::string>(400, std::string(100'000, 'x'))};
  service_.Add("flood", std::move(flood));
  options_.limits.write_timeout_ms = 200;
  Start();
  RawClient client(port(), 4096);
  client.Send(Post("/v1/chat/completions", Chat("flood", R"(,"stream":true)")));
  ASSERT_TRUE(Soon([&] { return service_.counts.live == 1; }));
  EXPECT_TRUE(Soon([&] { return service_.counts.live == 0; }));
  ExpectStatus(Ask(Get("/health")), 200);
}

TEST_F(ServerLimitsTest, TimesOutSlowHeadersAndBodies) {
  options_.limits.header_timeout_ms = options_.limits.body_timeout_ms = 200;
  Start();
  RawClient header(port());
  header.Send("GET /health HT");
  RawClient body(port());
  body.Send("POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
  ExpectStatus(header.ReadAll(), 408);
  ExpectStatus(body.ReadAll(), 408);
}

TEST_F(ServerLimitsTest, DripsDoNotExtendADeadline) {
  options_.limits.header_timeout_ms = 300;
  Start();
  RawClient client(port());
  bool closed = false;
  for (int i = 0; i < 1000 && !closed; ++i) closed = !client.Send("G") || client.WaitClosed(10);
  EXPECT_TRUE(closed);
}

TEST_F(ServerLimitsTest, ClosesIdleConnectionsWithoutAWord) {
  options_.limits.idle_timeout_ms = 200;
  Start();
  RawClient client(port());
  EXPECT_EQ(client.ReadAll(), "");
  EXPECT_TRUE(client.WaitClosed());
}

TEST_F(ServerLimitsTest, AnswersBrokenHttpWith400AndCloses) {
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
    EXPECT_TRUE(client.WaitClosed());
  }
}

TEST_F(ServerLimitsTest, AnswersTooMuchHeaderOrBody) {
  options_.limits.max_body_bytes = 10000;
  Start();
  ExpectStatus(Ask("GET / HTTP/1.1\r\nHost: a\r\nX: " + std::string(100'000, 'a') + "\r\n\r\n"), 431);
  ExpectStatus(Ask(Post("/v1/completions", std::string(10001, ' '))), 413);
}

TEST_F(ServerLimitsTest, ReadsAHugeBodyOfTinyChunksInFlatMemory) {
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

TEST_F(ServerLimitsTest, ClosesOnOtherProtocolsWithoutAWord) {
  Start();
  EXPECT_EQ(Ask("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), "");
  EXPECT_EQ(Ask("\x16\x03\x01\x02\x00\x01\x00"), "");
}

TEST_F(ServerLimitsTest, SendsContinueBeforeABodyThatWaitsForIt) {
  Start();
  const std::string body = R"({"model":"sql","prompt":"a"})";
  RawClient client(port());
  client.Send("POST /v1/completions HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: " +
              std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send(body);
  ExpectStatus(client.ReadResponse(), 200);
}

TEST_F(ServerLimitsTest, MakesRoomForNewConnectionsByClosingIdleOnes) {
  options_.limits.max_connections = 20;
  Start();
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 200; ++i) idle.push_back(std::make_unique<RawClient>(port()));
  ExpectStatus(Ask(Get("/health")), 200);
  ExpectStatus(AskChat("base"), 200);
}

TEST_F(ServerLimitsTest, AnswersOnlyProbesWhenAllConnectionsAreBusy) {
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

TEST_F(ServerLimitsTest, RefusesBodiesBeyondWhatAllTogetherMayHold) {
  options_.limits.max_body_bytes_total = 100'000;
  Start();
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 90000\r\n\r\n";
  RawClient first(port()), second(port());
  first.Send(head + std::string(80'000, ' '));
  second.Send(head + std::string(80'000, ' '));
  std::string response;
  bool first_refused = false;
  ASSERT_TRUE(Soon([&] {
    response = first.ReadUntil("\r\n\r\n", 1);
    first_refused = !response.empty();
    if (!first_refused) response = second.ReadUntil("\r\n\r\n", 1);
    return !response.empty();
  }));
  ExpectStatus(response, 503);
  // What was refused is not held any more: there is room for the rest of the other, and for another.
  RawClient& other = first_refused ? second : first;
  other.Send(std::string(10'000, ' '));
  ExpectStatus(other.ReadResponse(), 400);
  ExpectStatus(Ask(Post("/v1/completions", std::string(90'000, ' '), "Connection: close\r\n")), 400);
}

TEST_F(ServerLimitsTest, AnswersAClientThatOnlyEndedWhatItSays) {
  service_.Add("slow", {.pieces = {"a", "b"}, .ends_at_the_gate = true});
  Start();
  RawClient client(port());
  client.Send(Post("/v1/chat/completions", Chat("slow")));
  client.EndSending();
  EXPECT_NE(client.ReadUntil("HTTP/1.1 100 Continue\r\n\r\n"), "") << "the server finds out whether it is there";
  service_.gate.Open();
  const std::string response = client.ReadAll();
  ExpectStatus(response, 200);
  EXPECT_NE(response.find(R"("content":"ab")"), std::string::npos) << response;
  EXPECT_EQ(service_.counts.cancelled, 0);
}

TEST_F(ServerLimitsTest, StreamsToAClientThatOnlyEndedWhatItSays) {
  service_.Add("slow", {.pieces = {"a", "b"}, .ends_at_the_gate = true});
  Start();
  RawClient client(port());
  client.Send(Post("/v1/chat/completions", Chat("slow", R"(,"stream":true)")));
  std::string response = client.ReadUntil(R"("content":"b")");
  client.EndSending();
  response += client.ReadUntil(": keep-alive\n\n");
  EXPECT_NE(response.find(": keep-alive"), std::string::npos) << "the server finds out whether it is there";
  service_.gate.Open();
  response += client.ReadAll();
  ExpectStatus(response, 200);
  EXPECT_EQ(TextOf(EventsOf(response)), "ab");
  EXPECT_EQ(service_.counts.cancelled, 0);
}

TEST_F(ServerLimitsTest, TellsSuchAClientOfAnEarlyFailureByTheStatus) {
  service_.Add("broken", {.pieces = {}, .ends_at_the_gate = true, .failure = Internal("x")});
  Start();
  RawClient client(port());
  client.Send(Post("/v1/chat/completions", Chat("broken", R"(,"stream":true)")));
  client.EndSending();
  EXPECT_NE(client.ReadUntil("HTTP/1.1 100 Continue\r\n\r\n"), "");
  service_.gate.Open();
  ExpectStatus(client.ReadAll(), 500);
}

TEST_F(ServerLimitsTest, NoticesThatAClientLeavesAfterItEndedWhatItSays) {
  service_.Add("silent", {.pieces = {}, .hangs = true});
  options_.limits.comment_interval_ms = 20;
  Start();
  for (const char* more : {"", R"(,"stream":true)"}) {
    RawClient client(port());
    client.Send(Post("/v1/chat/completions", Chat("silent", more)));
    client.EndSending();
    EXPECT_NE(client.ReadUntil("\r\n\r\n"), "");
    ASSERT_TRUE(Soon([&] { return service_.counts.live == 1; }));
    client.Close();
    ASSERT_TRUE(Soon([&] { return service_.counts.live == 0; })) << more;
  }
}

// The end of its input is read before the refusal is there, and told of after it.
TEST_F(ServerLimitsTest, RefusesAClientThatOnlyEndedWhatItSays) {
  Start();
  for (int i = 0; i < 50; ++i) {
    RawClient client(port());
    client.Send(Post("/v1/chat/completions", "{", "Connection: close\r\n"));
    client.EndSending();
    const std::string response = client.ReadAll(RawClient::kPatienceMs / 4);
    ASSERT_NE(response.find("HTTP/1.1 400 "), std::string::npos) << i << ": " << response;
  }
}

TEST_F(ServerLimitsTest, TakesTheEndOfAnHttp10ClientsInputForItsLeave) {
  service_.Add("silent", {.pieces = {}, .hangs = true});
  Start();
  RawClient client(port());
  const std::string body = Chat("silent");
  client.Send("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
              body);
  client.EndSending();
  EXPECT_EQ(client.ReadAll(), "");
  ASSERT_TRUE(Soon([&] { return service_.counts.live == 0; }));
}

TEST_F(ServerLimitsTest, DrainsThenEnds) {
  service_.Add("slow", {.pieces = {"a", "b", "c"}, .ends_at_the_gate = true});
  Start();
  RawClient client(port());
  client.Send(Post("/v1/chat/completions", Chat("slow", R"(,"stream":true)")));
  ASSERT_TRUE(Soon([&] { return service_.counts.live == 1; }));
  server_->Shutdown(RawClient::kPatienceMs);
  ASSERT_TRUE(Soon([&] { return Ask(Get("/ready")).starts_with("HTTP/1.1 503 "); }));
  ExpectStatus(Ask(Get("/health")), 200);
  ExpectStatus(AskChat("base"), 503);
  service_.gate.Open();
  EXPECT_EQ(TextOf(EventsOf(client.ReadAll())), "abc");
  EXPECT_TRUE(server_->WaitEnded(RawClient::kPatienceMs / 2));
}

TEST_F(ServerLimitsTest, CancelsWhatDoesNotEndInTime) {
  service_.Add("hangs", {.pieces = {"a"}, .hangs = true});
  Start();
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 50; ++i) {
    clients.push_back(std::make_unique<RawClient>(port()));
    clients.back()->Send(Post("/v1/chat/completions", Chat("hangs", i % 2 == 0 ? R"(,"stream":true)" : "")));
  }
  ASSERT_TRUE(Soon([&] { return service_.counts.live == 50; }));
  server_->Shutdown(100);
  EXPECT_TRUE(server_->WaitEnded(RawClient::kPatienceMs));
  EXPECT_EQ(service_.counts.live, 0);
  const std::string streamed = clients[0]->ReadAll();
  EXPECT_NE(streamed.find(R"("code":"shutting_down")"), std::string::npos);
  EXPECT_TRUE(streamed.ends_with("0\r\n\r\n"));
  ExpectStatus(clients[1]->ReadAll(), 503);
}

TEST_F(ServerLimitsTest, EndsAtOnceWhenNothingRuns) {
  Start();
  RawClient idle(port());
  server_->Shutdown(2 * RawClient::kPatienceMs);
  EXPECT_TRUE(server_->WaitEnded(RawClient::kPatienceMs));
}

TEST(BoundSocket, RefusesAnAddressThatIsNotHereOrIsNone) {
  EXPECT_EQ(BoundSocket::Bind("192.0.2.1", 0).status().code(), StatusCode::kIo);
  EXPECT_EQ(BoundSocket::Bind("no such host", 0).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(ServerLimitsTest, RefusesAPortThatSomebodyElseHas) {
  Result<BoundSocket> early = BoundSocket::Bind("127.0.0.1", 0);
  ASSERT_TRUE(early.ok());
  const uint16_t wanted = early->port();
  EXPECT_FALSE(RawClient(wanted).connected()) << "nobody listens yet";
  Result<BoundSocket> late = BoundSocket::Bind("127.0.0.1", wanted);  // both still load their models
  Result<std::unique_ptr<Server>> started = StartOn(std::move(*early));
  ASSERT_TRUE(started.ok());
  server_ = std::move(*started);
  ExpectStatus(Ask(Get("/health")), 200);
  const Result<BoundSocket> third = BoundSocket::Bind("127.0.0.1", wanted);
  EXPECT_EQ(third.status().code(), StatusCode::kIo);
  EXPECT_NE(third.status().message().find(std::to_string(wanted)), std::string::npos);
  if (late.ok()) {
    EXPECT_EQ(StartOn(std::move(*late)).status().code(), StatusCode::kIo);
  }
}

TEST_F(ServerLimitsTest, ServesManyClientsAtOnce) {
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
