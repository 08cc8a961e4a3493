#include "base/json.h"

#include <gtest/gtest.h>

namespace df {
namespace {

StatusCode CodeOf(std::string_view text) {
  const Result<Json> parsed = ParseJson(text);
  return parsed.ok() ? StatusCode::kOk : parsed.status().code();
}

TEST(ParseJson, KeepsTheOrderOfKeys) {
  const Result<Json> parsed = ParseJson(R"({"z": 1, "a": {"y": 2, "b": [3, "x"]}})");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(DumpJson(*parsed), R"({"z":1,"a":{"y":2,"b":[3,"x"]}})");
}

TEST(ParseJson, RefusesDepthBeforeTheStackIsSpent) {
  EXPECT_EQ(CodeOf(std::string(100000, '[')), StatusCode::kResourceExhausted);
  EXPECT_EQ(CodeOf(std::string(64, '[') + std::string(64, ']')), StatusCode::kOk);
  EXPECT_EQ(CodeOf(std::string(65, '[') + std::string(65, ']')), StatusCode::kResourceExhausted);
}

TEST(ParseJson, RefusesWhatTheSpecificationForbids) {
  for (const char* text : {"", "{", "[1,]", "{\"a\":1,\"a\":2}", "\xEF\xBB\xBF{}", "\"\xC0\xAF\"", "NaN", "1e400",
                           "-1e400", "{} x", "\"\\ud800\"", "{\"a\":01}", "'a'"}) {
    EXPECT_EQ(CodeOf(text), StatusCode::kCorrupt) << text;
  }
}

TEST(ParseJson, RefusesMoreBytesThanAllowed) {
  const Result<Json> parsed = ParseJson("[1, 2, 3]", {.max_bytes = 8});
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.status().code(), StatusCode::kResourceExhausted);
}

TEST(ParseJson, RefusesMoreKeysAndValuesThanAllowed) {
  for (const char* five : {"[1, 2, 3, 4]", "[[], {}, \"x\", null]", "[[[[[]]]]]", "{\"a\": {\"b\": true}}"}) {
    EXPECT_TRUE(ParseJson(five, {.max_items = 5}).ok()) << five;
    const Result<Json> parsed = ParseJson(five, {.max_items = 4});
    ASSERT_FALSE(parsed.ok()) << five;
    EXPECT_EQ(parsed.status().code(), StatusCode::kResourceExhausted);
    EXPECT_NE(parsed.status().message().find("more than 4 keys and values"), std::string::npos);
  }
}

TEST(JsonReaders, NeverConvertSilently) {
  const Json object = *ParseJson(R"({"a": 8.5, "b": "8", "c": 8, "d": true, "e": 18446744073709551615, "f": null})");
  EXPECT_FALSE(JsonInt(object, "a", {}).ok());
  EXPECT_FALSE(JsonInt(object, "b", {}).ok());
  EXPECT_EQ(*JsonInt(object, "c", {}), 8);
  EXPECT_FALSE(JsonInt(object, "c", {.min = 9}).ok());
  EXPECT_FALSE(JsonInt(object, "d", {}).ok());
  EXPECT_FALSE(JsonInt(object, "e", {}).ok());
  EXPECT_EQ(*JsonIntOr(object, "f", {}, 3), 3);
  EXPECT_EQ(*JsonIntOr(object, "absent", {}, 4), 4);
  EXPECT_FALSE(JsonNumberOr(object, "b", 1).ok());
  EXPECT_FALSE(JsonBoolOr(object, "c", false).ok());
  EXPECT_FALSE(JsonString(object, "c").ok());
  EXPECT_FALSE(JsonString(object, "f").ok());
}

TEST(JsonReaders, NameTheKeyAndWhatWasFound) {
  const Json object = *ParseJson(R"({"hidden_size": 8.5})");
  const Result<int64_t> read = JsonInt(object, "hidden_size", {.min = 1});
  ASSERT_FALSE(read.ok());
  EXPECT_NE(read.status().message().find("hidden_size"), std::string::npos);
  EXPECT_NE(read.status().message().find("8.5"), std::string::npos);
}

}  // namespace
}  // namespace df
