#include "base/json.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "testing/process_memory.h"

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

constexpr JsonLimits kUnlimited = {.max_bytes = SIZE_MAX};

// Small parts, so that nothing is left for a large one when they have taken all memory.
std::string ManySmallParts(const std::string& open, const std::string& before_each, const std::string& close) {
  std::string part = "[0";
  for (int i = 0; i < 999; ++i) part += ",0";
  std::string text = open;
  for (int i = 0; i < 10'000; ++i) {
    text += i == 0 ? "" : ",";
    if (!before_each.empty()) text += "\"" + before_each + std::to_string(i) + "\":";
    text += part + "]";
  }
  return text + close;
}

[[noreturn]] void ExitHavingParsedWithoutMemory(const std::string& text) {
  if (!testing::LimitAddressSpace(size_t{48} << 20)) std::_Exit(99);
  try {
    static_cast<void>(ParseJson(text, kUnlimited));
  } catch (const std::bad_alloc&) {
    std::_Exit(42);
  }
  std::_Exit(1);
}

TEST(ParseJson, LeavesNothingWhereMemoryIsRefused) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer needs address space of its own";
  for (const std::string& text :
       {ManySmallParts("[", "", "]"), ManySmallParts("{", "k", "}"), ManySmallParts("[[[{\"a\":[", "", "]}]]]")}) {
    EXPECT_EXIT(ExitHavingParsedWithoutMemory(text), ::testing::ExitedWithCode(42), "");
  }
}

[[noreturn]] void ExitHavingEndedAValueWithoutMemory(const std::string& text) {
  {
    HeldJson held{*ParseJson(text, kUnlimited)};
    if (!testing::LimitAddressSpace(0)) std::_Exit(99);
    for (size_t bytes = size_t{1} << 20; bytes >= 16; bytes /= 2) {  // takes what the heap has left
      for (void* volatile taken = &bytes; taken != nullptr;) taken = std::malloc(bytes);
    }
  }
  std::_Exit(42);
}

TEST(HeldJson, EndsWhereThereIsNoMemory) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer needs address space of its own";
  EXPECT_EXIT(ExitHavingEndedAValueWithoutMemory("[[1,2,[3,{\"a\":[4,5]}]],{\"b\":[[],{}]},\"c\"]"),
              ::testing::ExitedWithCode(42), "");
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
