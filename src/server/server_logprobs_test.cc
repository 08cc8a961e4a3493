// Log-probabilities and echoed prompts as clients see them.
#include "server/server_fixture.h"

namespace df::server {
namespace {

class ServerLogprobs : public ServerTest {
 protected:
  Json AnswerTo(const std::string& path, const std::string& body) {
    const std::string response = Ask(Post(path, body, "Connection: close\r\n"));
    ExpectStatus(response, 200);
    Result<Json> json = ParseJson(BodyOf(response));
    EXPECT_TRUE(json.ok()) << response;
    return json.ok() ? std::move(*json) : Json();
  }
  void ExpectRefused(const std::string& path, const std::string& body, const std::string& param) {
    const std::string response = Ask(Post(path, body, "Connection: close\r\n"));
    ExpectStatus(response, 400);
    const Result<Json> json = ParseJson(BodyOf(response));
    ASSERT_TRUE(json.ok()) << response;
    EXPECT_EQ((*json)["error"]["param"], param) << response;
    EXPECT_EQ((*json)["error"]["code"], "invalid_value") << response;
  }
};

TEST_F(ServerLogprobs, EchoedPromptsStandBeforeTheirAnswers) {
  Start();
  const Json answer = AnswerTo(
      "/v1/completions", R"({"model":"sql","prompt":["ab","c"],"max_tokens":5,"echo":true,"logprobs":1,"seed":1234})");
  const Json& first = answer["choices"][0];
  EXPECT_EQ(first["text"], "abSELECT 1");
  EXPECT_EQ(first["logprobs"]["tokens"], Json({"a", "b", "SELECT", " 1"}));
  EXPECT_EQ(first["logprobs"]["token_logprobs"], Json({nullptr, -0.25, -0.25, -0.5}));
  EXPECT_EQ(first["logprobs"]["text_offset"], Json({0, 1, 2, 8}));
  EXPECT_TRUE(first["logprobs"]["top_logprobs"][0].is_null());
  EXPECT_EQ(first["logprobs"]["top_logprobs"][3], (Json{{"0", 0}, {" 1", -0.5}}));
  EXPECT_EQ(answer["choices"][1]["text"], "cSELECT 1");
  EXPECT_EQ(answer["choices"][1]["logprobs"]["tokens"], Json({"c", "SELECT", " 1"}));
}

TEST_F(ServerLogprobs, OfPromptsAloneWhenNoTokenIsWanted) {
  Start();
  const Json answer =
      AnswerTo("/v1/completions", R"({"model":"sql","prompt":"abc","max_tokens":0,"echo":true,"logprobs":0})");
  EXPECT_EQ(answer["choices"][0]["text"], "abc");
  EXPECT_EQ(answer["choices"][0]["logprobs"]["token_logprobs"], Json({nullptr, -0.25, -0.5}));
  EXPECT_EQ(answer["choices"][0]["logprobs"]["top_logprobs"][2], (Json{{"c", -0.5}}));
  EXPECT_EQ(answer["usage"]["completion_tokens"], 0);
}

TEST_F(ServerLogprobs, AnEchoWithoutLogprobsIsTextAlone) {
  Start();
  const Json answer = AnswerTo("/v1/completions", R"({"model":"sql","prompt":"abc","echo":true})");
  EXPECT_EQ(answer["choices"][0]["text"], "abcSELECT 1");
  EXPECT_TRUE(answer["choices"][0]["logprobs"].is_null());
}

TEST_F(ServerLogprobs, OfAChatComeWithBytesAndTheLikeliestTokens) {
  Start();
  const Json answer = AnswerTo("/v1/chat/completions", Chat("sql", R"(,"logprobs":true,"top_logprobs":2)"));
  const Json& content = answer["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2U);
  EXPECT_EQ(content[1]["token"], " 1");
  EXPECT_EQ(content[1]["logprob"], -0.5);
  EXPECT_EQ(content[1]["bytes"], Json({32, 49}));
  ASSERT_EQ(content[1]["top_logprobs"].size(), 2U);
  EXPECT_EQ(content[1]["top_logprobs"][1], (Json{{"token", "1"}, {"logprob", -0.125}, {"bytes", {49}}}));
  const Json plain = AnswerTo("/v1/chat/completions", Chat("sql", R"(,"logprobs":true)"));
  EXPECT_EQ(plain["choices"][0]["logprobs"]["content"][0]["top_logprobs"], Json::array());
  EXPECT_TRUE(AnswerTo("/v1/chat/completions", Chat("sql"))["choices"][0]["logprobs"].is_null());
}

TEST_F(ServerLogprobs, StreamedTogetherAreTheUnstreamedOnes) {
  Start();
  const std::string body = R"({"model":"base","prompt":"ab","echo":true,"logprobs":2)";
  const Json whole = AnswerTo("/v1/completions", body + "}");
  const std::vector<std::string> events =
      EventsOf(Ask(Post("/v1/completions", body + R"(,"stream":true})", "Connection: close\r\n")));
  std::map<std::string, Json> joined;
  for (const std::string& event : events) {
    const Result<Json> json = ParseJson(event);
    if (!json.ok() || (*json)["choices"][0]["logprobs"].is_null()) continue;
    for (const auto& [name, list] : (*json)["choices"][0]["logprobs"].items()) {
      for (const Json& entry : list) joined[name].push_back(entry);
    }
  }
  EXPECT_EQ(TextOf(events), whole["choices"][0]["text"].get<std::string>());
  ASSERT_EQ(whole["choices"][0]["logprobs"]["tokens"].size(), 5U);
  for (const auto& [name, list] : whole["choices"][0]["logprobs"].items()) EXPECT_EQ(joined[name], list) << name;

  const std::vector<std::string> chat = EventsOf(AskChat("base", R"(,"stream":true,"logprobs":true)"));
  size_t n_tokens = 0;
  for (const std::string& event : chat) {
    const Result<Json> json = ParseJson(event);
    if (json.ok() && !(*json)["choices"][0]["logprobs"].is_null()) {
      n_tokens += (*json)["choices"][0]["logprobs"]["content"].size();
    }
  }
  EXPECT_EQ(n_tokens, 3U);
}

TEST_F(ServerLogprobs, MoreThanTheServerGivesAreRefusedByName) {
  Start();
  const std::string completion = R"({"model":"sql","prompt":"abc",)";
  ExpectRefused("/v1/completions", completion + R"("logprobs":21})", "logprobs");
  ExpectRefused("/v1/completions", completion + R"("logprobs":1000000000,"echo":true})", "logprobs");
  ExpectRefused("/v1/chat/completions", Chat("sql", R"(,"logprobs":true,"top_logprobs":21)"), "top_logprobs");
  std::string prompts = "\"" + std::string(900, 'a') + "\"";  // 60 x 900 x 21 are more than 2^20
  for (int i = 1; i < 60; ++i) prompts += ",\"" + std::string(900, 'a') + "\"";
  const std::string many = R"({"model":"sql","max_tokens":1,"echo":true,"prompt":[)" + prompts + "]";
  ExpectRefused("/v1/completions", many + R"(,"logprobs":20})", "logprobs");
  AnswerTo("/v1/completions", many + R"(,"logprobs":1})");
}

TEST_F(ServerLogprobs, APromptThatFillsTheContextCanBeEchoedAlone) {
  Start();
  const auto body = [](int n_prompt, int max_tokens) {
    return R"({"model":"sql","echo":true,"prompt":")" + std::string(static_cast<size_t>(n_prompt), 'a') +
           R"(","max_tokens":)" + std::to_string(max_tokens) + "}";
  };
  for (const auto& [n_prompt, max_tokens, status] :
       {std::tuple{1000, 0, 200}, std::tuple{1001, 0, 400}, std::tuple{1000, 1, 400}, std::tuple{999, 1, 200}}) {
    ExpectStatus(Ask(Post("/v1/completions", body(n_prompt, max_tokens), "Connection: close\r\n")), status);
  }
}

}  // namespace
}  // namespace df::server
