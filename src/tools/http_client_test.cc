#include "tools/http_client.h"

#include <gtest/gtest.h>

#include "server/server_fixture.h"
#include "testing/refusal.h"
#include "testing/status_matchers.h"

namespace df::tools {
namespace {

using testing::ExpectRefusal;
using testing::ValueOrDie;

class HttpClientTest : public server::ServerTest {
 protected:
  Endpoint At(const std::string& key = "") const {
    return {.host = "127.0.0.1", .port = std::to_string(port()), .prefix = "", .api_key = key};
  }
};

TEST_F(HttpClientTest, AsksAndPostsAndKeepsWhatARefusalSays) {
  options_.keys.api = {"secret"};
  Start();
  EXPECT_EQ(ValueOrDie(AskServer(At(), {.path = "/health"})).status, 200U);
  const HttpAnswer refused = ValueOrDie(AskServer(At("wrong"), {.post = true, .path = "/v1/variants/sql/pin"}));
  EXPECT_EQ(refused.status, 401U);
  EXPECT_NE(refused.body.find("invalid_api_key"), std::string::npos);
  const HttpAnswer pinned =
      ValueOrDie(AskServer(At("secret"), {.post = true, .path = "/v1/variants/sql/pin", .body = "{}"}));
  EXPECT_EQ(pinned.status, 200U) << pinned.body;
  EXPECT_NE(pinned.body.find("\"pinned\":true"), std::string::npos);
  ExpectRefusal(Fetch(At(), "/v1/models"), StatusCode::kUnavailable, {"401", "invalid_api_key"});
}

TEST_F(HttpClientTest, SaysWhereNobodyAnswers) {
  Start();
  Endpoint nobody = At();
  server_.reset();
  ExpectRefusal(AskServer(nobody, {.path = "/health"}), StatusCode::kUnavailable, {"127.0.0.1:"});
}

TEST(PercentEncoded, LeavesOnlyWhatAPathMayHold) {
  EXPECT_EQ(PercentEncoded("org/model-1.5_x~"), "org%2Fmodel-1.5_x~");
  EXPECT_EQ(PercentEncoded("a b%?#\xC3\xA9"), "a%20b%25%3F%23%C3%A9");
}

}  // namespace
}  // namespace df::tools
