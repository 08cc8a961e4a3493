// For tests: a server over scripted models, and what asks it. Its time limits are those of production, so that a busy
// machine fails no test; the tests of a limit shorten that one.
#ifndef DELTAFOLD_SERVER_SERVER_FIXTURE_H_
#define DELTAFOLD_SERVER_SERVER_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "server/raw_client.h"
#include "server/scripted_service.h"
#include "server/server.h"

namespace df::server {

using std::chrono::milliseconds;

class ServerTest : public ::testing::Test {
 protected:
  ServerTest() {
    options_.version = "1.2.3";
    options_.log = [this](const RequestLog& log) {
      const std::lock_guard lock(log_mutex_);
      logs_.push_back(log);
    };
  }
  ~ServerTest() override {
    service_.gate.Open();
    service_.scripted_store().gate.Open();
    server_.reset();
  }

  void Start() {
    Result<BoundSocket> socket = BoundSocket::Bind("127.0.0.1", 0);
    ASSERT_TRUE(socket.ok()) << socket.status().message();
    Result<std::unique_ptr<Server>> started = StartOn(std::move(*socket));
    ASSERT_TRUE(started.ok()) << started.status().message();
    server_ = std::move(*started);
  }
  Result<std::unique_ptr<Server>> StartOn(BoundSocket socket) {
    return Server::Start(std::move(socket), options_, {.service = service_, .metrics = metrics_});
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
  // Whether `condition` comes true within a minute.
  template <typename Condition>
  static bool Soon(const Condition& condition) {
    for (int i = 0; i < 6000; ++i) {
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

inline void ExpectStatus(const std::string& response, int status) {
  EXPECT_TRUE(response.starts_with("HTTP/1.1 " + std::to_string(status) + " ")) << response.substr(0, 300);
}

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_SERVER_FIXTURE_H_
