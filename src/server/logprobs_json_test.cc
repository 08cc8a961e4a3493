#include "server/logprobs_json.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/json.h"

namespace df::server {
namespace {

TokenLikelihood Token(std::string bytes, std::optional<float> logprob) {
  return {.bytes = std::move(bytes), .logprob = logprob};
}

Json Parsed(const std::string& text) {
  Result<Json> json = ParseJson(text);
  EXPECT_TRUE(json.ok()) << text;
  return json.ok() ? std::move(*json) : Json();
}

TEST(LogprobsJson, WritesCompletionsAsListsWithAnEntryAToken) {
  LogprobsJson json(LogprobStyle::kCompletion);
  EXPECT_EQ(json.Take(), "");
  json.Add({.token = Token("The", std::nullopt), .top = {}});
  json.Add({.token = Token(" \"h\xC3\xA9\"", -1.5F), .top = {Token(" a", -0.5F), Token(" b", -1.25F)}});
  json.Add({.token = Token("x", -0.1F), .top = {Token("x", -0.1F), Token("y", -3.0F)}});
  EXPECT_EQ(Parsed(json.Take()), Parsed(R"({"tokens":["The"," \"h\u00e9\"","x"],"token_logprobs":[null,-1.5,-0.1],
      "top_logprobs":[null,{" a":-0.5," b":-1.25," \"h\u00e9\"":-1.5},{"x":-0.1,"y":-3}],"text_offset":[0,3,8]})"));
  EXPECT_TRUE(json.empty());
  json.Add({.token = Token("z", -2.0F), .top = {}});  // without likeliest ones the token stands alone, offsets go on
  EXPECT_EQ(Parsed(json.Take()),
            Parsed(R"({"tokens":["z"],"token_logprobs":[-2],"top_logprobs":[{"z":-2}],"text_offset":[9]})"));
}

TEST(LogprobsJson, WritesChatsAsObjectsWithBytes) {
  LogprobsJson json(LogprobStyle::kChat);
  json.Add({.token = Token("\xC3\xA9", -0.25F), .top = {Token("e", -0.125F), Token("\xC3\xA9", -0.25F)}});
  json.Add({.token = Token("", -1.0F), .top = {}});
  EXPECT_EQ(Parsed(json.Take()),
            Parsed(R"({"content":[{"token":"\u00e9","logprob":-0.25,"bytes":[195,169],"top_logprobs":[
              {"token":"e","logprob":-0.125,"bytes":[101]},{"token":"\u00e9","logprob":-0.25,"bytes":[195,169]}]},
              {"token":"","logprob":-1,"bytes":[],"top_logprobs":[]}],"refusal":null})"));
}

TEST(LogprobsJson, NamesPartsOfCharactersByTheirBytesAndCountsTheCharacterOnce) {
  LogprobsJson json(LogprobStyle::kCompletion);
  json.Add({.token = Token("\xE2\x82", -1.0F), .top = {Token("\xE2\x83", -0.5F)}});
  json.Add({.token = Token("\xAC", -1.0F), .top = {}});
  json.Add({.token = Token("!", -1.0F), .top = {}});
  const Json value = Parsed(json.Take());
  EXPECT_EQ(value["tokens"], Json({"bytes:\\xe2\\x82", "bytes:\\xac", "!"}));
  EXPECT_EQ(value["top_logprobs"][0], Parsed(R"({"bytes:\\xe2\\x83":-0.5,"bytes:\\xe2\\x82":-1})"));
  EXPECT_EQ(value["text_offset"], Json({0, 1, 1}));
}

TEST(LogprobsJson, KeepsTheLikeliestOfTokensWithOneText) {
  LogprobsJson json(LogprobStyle::kCompletion);
  json.Add({.token = Token("", -7.0F), .top = {Token("a", -0.5F), Token("", -1.0F), Token("", -2.0F)}});
  EXPECT_EQ(Parsed(json.Take())["top_logprobs"][0], Parsed(R"({"a":-0.5,"":-1})"));
}

TEST(LogprobsJson, WritesWhatHasNoNumberInJsonAsTheLowest) {
  LogprobsJson json(LogprobStyle::kChat);
  json.Add({.token = Token("a", -std::numeric_limits<float>::infinity()), .top = {}});
  EXPECT_EQ(Parsed(json.Take())["content"][0]["logprob"], -9999);
}

TEST(LogprobsJson, NumbersReadBackAsTheSameFloat) {
  for (const float value : {-0.0F, -1e-8F, -0.1F, -12.345678F, -3.4e30F / 3e27F}) {
    LogprobsJson json(LogprobStyle::kChat);
    json.Add({.token = Token("a", value), .top = {}});
    EXPECT_EQ(static_cast<float>(Parsed(json.Take())["content"][0]["logprob"].get<double>()), value);
  }
}

}  // namespace
}  // namespace df::server
