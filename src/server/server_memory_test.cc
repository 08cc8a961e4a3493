// What large requests cost: a bounded peak, and nothing once they are answered.
#include "base/heap.h"
#include "server/server_fixture.h"
#include "testing/process_memory.h"

namespace df::server {
namespace {

using testing::ResetPeak;
using testing::StatusBytes;

constexpr size_t kMB = 1'000'000;

// {"model":"base","prompt":[UNIT,UNIT,...]} just within the limit of a body.
std::string LargestBody(std::string_view unit) {
  std::string body = R"({"model":"base","prompt":[)";
  while (body.size() + unit.size() + 10 < ServerLimits().max_body_bytes) {
    body += unit;
    body += ',';
  }
  body.back() = ']';
  return body + '}';
}

class ServerMemorySlow : public ServerTest {
 protected:
  void SetUp() override {
    if (testing::kSanitized) GTEST_SKIP() << "the sanitizer's own memory is not ours";
    KeepLittleFreeMemory();  // as `deltafold serve` does
  }
};

TEST_F(ServerMemorySlow, BoundsWhatALargeBodyTakesAndGivesItBack) {
  Start();
  for (const std::string_view unit : {"[]", "{}", "1", "\"\"", R"({"":{}})", R"([{"a":[1]}])"}) {
    const std::string request = Post("/v1/completions", LargestBody(unit), "Connection: close\r\n");
    ResetPeak();
    const size_t before = StatusBytes("VmRSS");
    for (int i = 0; i < 3; ++i) {
      const std::string response = Ask(request);
      ExpectStatus(response, 400);
      EXPECT_NE(response.find("more than 500000 keys and values"), std::string::npos) << response;
    }
    // The body once in the reader, grown by doubling, and at most 100 bytes for each of 500 000 items.
    EXPECT_LT(StatusBytes("VmHWM") - before, 32 * kMB + 50 * kMB) << unit;
    EXPECT_TRUE(Soon([&] { return StatusBytes("VmRSS") < before + 8 * kMB; })) << unit << StatusBytes("VmRSS") - before;
  }
}

TEST_F(ServerMemorySlow, HoldsNoBodyOfAClientThatLeftTheQueue) {
  service_.Add("slow-start", {.tokenises_at_the_gate = true});
  options_.limits.n_workers = 1;
  Start();
  RawClient busy(port());
  busy.Send(Post("/v1/chat/completions", Chat("slow-start")));
  ASSERT_TRUE(Soon([&] { return service_.counts.tokenising == 1; }));
  const std::string request = Post("/v1/completions", std::string(12 * kMB, ' '));
  const size_t before = StatusBytes("VmRSS");
  for (size_t i = 0; i < 20; ++i) {
    {
      RawClient client(port());
      client.Send(request);
    }
    ASSERT_TRUE(Soon([&] {
      const std::lock_guard lock(log_mutex_);
      return logs_.size() == i + 1;
    }));
  }
  EXPECT_LT(StatusBytes("VmRSS"), before + 4 * 12 * kMB) << "of 240 MB that were sent";
}

TEST_F(ServerMemorySlow, HoldsNoRefusedBodyWhileItsConnectionLingers) {
  options_.limits.linger_ms = RawClient::kPatienceMs;
  Start();
  std::string request = "POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 17; ++i) request += "100000\r\n" + std::string(0x100000, ' ') + "\r\n";  // the last is too much
  std::vector<std::unique_ptr<RawClient>> clients;
  const size_t before = StatusBytes("VmRSS");
  for (int i = 0; i < 10; ++i) {
    clients.push_back(std::make_unique<RawClient>(port()));
    clients.back()->Send(request);
    ExpectStatus(clients.back()->ReadAll(), 413);
  }
  EXPECT_TRUE(Soon([&] { return StatusBytes("VmRSS") < before + 32 * kMB; })) << StatusBytes("VmRSS") - before;
}

}  // namespace
}  // namespace df::server
