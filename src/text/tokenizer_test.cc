#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "base/utf8.h"
#include "text/text_fixture.h"

namespace df {
namespace {

using testing::kTestTokenizers;
using testing::LoadTestTokenizer;
using testing::ReadJsonData;
using testing::ReadTextData;
using testing::TestPath;
using testing::ValueOrDie;
using Ids = std::vector<int32_t>;

// By the process's own clock: other work on the machine does not count.
double SecondsOf(const auto& work) {
  const std::clock_t start = std::clock();
  work();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

// `name`.json with `from` replaced by `to`, once.
std::string Altered(const std::string& name, const std::string& from, const std::string& to) {
  std::string json = ReadTextData(name + ".json");
  const size_t at = json.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return json.replace(at, from.size(), to);
}

TEST(Tokenizer, GivesTheReferenceIdsWithAndWithoutSpecialTokens) {
  for (const std::string name : kTestTokenizers) {
    const auto tokenizer = LoadTestTokenizer(name);
    const Json expected = ReadJsonData(name + ".expected.json");
    for (const Json& row : expected["encode"]) {
      const auto text = row["text"].get<std::string>();
      SCOPED_TRACE(name + ": " + DumpJson(row["text"]));
      EXPECT_EQ(ValueOrDie(tokenizer->Encode(text, {.parse_special_tokens = true})), row["ids"].get<Ids>());
      EXPECT_EQ(ValueOrDie(tokenizer->Encode(text, {.add_special_tokens = true, .parse_special_tokens = true})),
                row["framed"].get<Ids>());
    }
  }
}

TEST(Tokenizer, KeepsSpecialTokensTextUnlessToldOtherwise) {
  for (const std::string name : kTestTokenizers) {
    const auto tokenizer = LoadTestTokenizer(name);
    const Json expected = ReadJsonData(name + ".expected.json");
    for (const Json& row : expected["encode"]) {
      SCOPED_TRACE(name + ": " + DumpJson(row["text"]));
      EXPECT_EQ(ValueOrDie(tokenizer->Encode(row["text"].get<std::string>())), row["plain"].get<Ids>());
    }
  }
}

TEST(Tokenizer, GivesTheReferenceText) {
  for (const std::string name : kTestTokenizers) {
    const auto tokenizer = LoadTestTokenizer(name);
    const Json expected = ReadJsonData(name + ".expected.json");
    for (const Json& row : expected["decode"]) {
      SCOPED_TRACE(name + ": " + DumpJson(row["ids"]));
      const auto ids = row["ids"].get<Ids>();
      EXPECT_EQ(ValueOrDie(tokenizer->Decode(ids, {.skip_special_tokens = false})), row["all"].get<std::string>());
      EXPECT_EQ(ValueOrDie(tokenizer->Decode(ids)), row["skipped"].get<std::string>());
    }
  }
}

TEST(Tokenizer, KnowsItsTokens) {
  const auto tokenizer = LoadTestTokenizer("llama3_like");
  const int32_t bos = tokenizer->IdOrNull("<|begin_of_text|>").value_or(-1);
  EXPECT_EQ(tokenizer->vocab(), 427);
  EXPECT_TRUE(tokenizer->IsSpecial(bos));
  EXPECT_FALSE(tokenizer->IsSpecial(0));
  EXPECT_FALSE(tokenizer->IsSpecial(-1));
  EXPECT_EQ(tokenizer->prefix_ids(), Ids{bos});
  EXPECT_TRUE(tokenizer->suffix_ids().empty());
  EXPECT_EQ(ValueOrDie(tokenizer->TokenText(bos)), "<|begin_of_text|>");
  EXPECT_FALSE(tokenizer->IdOrNull("no such token"));
  EXPECT_FALSE(tokenizer->IdOrNull("\xFF"));
  EXPECT_EQ(tokenizer->added_tokens().size(), 7u);
  EXPECT_GT(tokenizer->memory_bytes(), 427u * 96);

  const auto bert = LoadTestTokenizer("word_piece");
  EXPECT_EQ(bert->prefix_ids(), Ids{1});
  EXPECT_EQ(bert->suffix_ids(), Ids{2});
  const auto qwen = LoadTestTokenizer("qwen_like");
  EXPECT_FALSE(qwen->IsSpecial(qwen->IdOrNull("<think>").value_or(-1)));
}

TEST(Tokenizer, TokenBytesTogetherAreTheText) {
  for (const std::string name : {"qwen_like", "llama3_like", "llama2_like", "mistral_like"}) {
    const auto tokenizer = LoadTestTokenizer(name);
    const Json expected = ReadJsonData(name + ".expected.json");
    for (const Json& row : expected["encode"]) {
      SCOPED_TRACE(name + ": " + DumpJson(row["text"]));
      std::string bytes;
      for (const int32_t id : row["ids"].get<Ids>()) bytes += ValueOrDie(tokenizer->TokenBytes(id));
      const std::string text = ValueOrDie(tokenizer->Decode(row["ids"].get<Ids>(), {.skip_special_tokens = false}));
      // The decoder drops a space in front of the first text of all.
      EXPECT_TRUE(bytes == text || bytes == " " + text) << DumpJson(Json(bytes)) << " for " << DumpJson(Json(text));
    }
  }
}

TEST(Tokenizer, TokenBytesAreThoseOfTheTokenAloneBehindOtherText) {
  const auto llama2 = LoadTestTokenizer("llama2_like");
  EXPECT_EQ(ValueOrDie(llama2->TokenBytes(llama2->IdOrNull("<0xE2>").value_or(-1))), "\xE2");
  EXPECT_EQ(ValueOrDie(llama2->TokenBytes(llama2->IdOrNull("<s>").value_or(-1))), "<s>");
  EXPECT_EQ(ValueOrDie(llama2->TokenBytes(llama2->IdOrNull("\u2581").value_or(-1))), " ");
  const auto qwen = LoadTestTokenizer("qwen_like");
  EXPECT_EQ(ValueOrDie(qwen->TokenBytes(qwen->IdOrNull("\u0120").value_or(-1))), " ");  // how byte-level spells a space
  const auto bert = LoadTestTokenizer("word_piece");
  EXPECT_EQ(ValueOrDie(bert->TokenBytes(bert->IdOrNull("##s").value_or(-1))), "s");
  EXPECT_EQ(qwen->TokenBytes(-1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(qwen->TokenBytes(qwen->vocab()).status().code(), StatusCode::kInvalidArgument);
}

TEST(Tokenizer, RefusesIdsWithoutAToken) {
  const auto tokenizer = LoadTestTokenizer("qwen_like");
  for (const int32_t id : {-1, tokenizer->vocab(), INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tokenizer->Decode(Ids{5, id}).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(tokenizer->TokenText(id).status().code(), StatusCode::kInvalidArgument);
  }
  const auto holes = ValueOrDie(Tokenizer::Load(TestPath("hostile/tokenizer/ok_id_holes.json")));
  EXPECT_EQ(holes->vocab(), 101);
  EXPECT_EQ(holes->Decode(Ids{50}).status().code(), StatusCode::kInvalidArgument);
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8OrTooLong) {
  const auto tokenizer = LoadTestTokenizer("qwen_like");
  EXPECT_EQ(tokenizer->Encode("ab\xFF").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(tokenizer->Encode("\xED\xA0\x80").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(tokenizer->Encode("abc", {.max_text_bytes = 2}).status().code(), StatusCode::kResourceExhausted);
}

TEST(Tokenizer, SharesOneFileAmongModels) {
  const std::string path = testing::TextDataPath("qwen_like.json");
  const auto first = ValueOrDie(Tokenizer::Load(path));
  EXPECT_EQ(ValueOrDie(Tokenizer::Load(path, first)), first);
  EXPECT_NE(ValueOrDie(Tokenizer::Load(testing::TextDataPath("llama3_like.json"), first)), first);
}

TEST(Tokenizer, BoundsTheTextThatFitsANumberOfTokens) {
  for (const std::string name : {"qwen_like", "llama3_like", "llama2_like", "mistral_like"}) {
    const auto tokenizer = LoadTestTokenizer(name);
    ASSERT_LT(tokenizer->MaxTextBytes(1), 1000u) << name;
    const Json expected = ReadJsonData(name + ".expected.json");
    for (const Json& row : expected["encode"]) {
      const auto n_tokens = static_cast<int64_t>(row["ids"].size());
      EXPECT_LE(row["text"].get<std::string>().size(), tokenizer->MaxTextBytes(n_tokens)) << name;
    }
  }
  EXPECT_EQ(LoadTestTokenizer("word_piece")->MaxTextBytes(1), SIZE_MAX);        // unknown words are one token
  EXPECT_EQ(LoadTestTokenizer("odd_added_tokens")->MaxTextBytes(1), SIZE_MAX);  // spaces vanish beside <mask>
}

TEST(HostileTokenizer, EveryFileGivesItsExpectedAnswer) {
  const std::string index = ValueOrDie(ReadFileBounded(TestPath("hostile/index.jsonl"), size_t{1} << 20));
  int n_seen = 0;
  for (size_t from = 0; from < index.size();) {
    const size_t end = std::min(index.find('\n', from), index.size());
    const Json row = ValueOrDie(ParseJson(index.substr(from, end - from)));
    from = end + 1;
    if (row["kind"] != "tokenizer") continue;
    ++n_seen;
    const auto path = row["path"].get<std::string>();
    const double seconds = SecondsOf([&] {
      const auto tokenizer = Tokenizer::Load(TestPath("hostile/" + path));
      EXPECT_EQ(tokenizer.ok(), row["expect"] == "ok") << path << ": " << tokenizer.status().message();
      const std::string input = row.value("input", "abc");
      if (tokenizer.ok()) {
        EXPECT_FALSE(ValueOrDie((*tokenizer)->Encode(input)).empty());
      }
      if (!tokenizer.ok()) {
        EXPECT_GT(tokenizer.status().message().size(), path.size() + 10);
      }
    });
    EXPECT_LT(seconds, row.value("max_seconds", 10.0)) << path;
  }
  EXPECT_EQ(n_seen, 11);
}

TEST(HostileTokenizer, DeepNestingIsRefusedBeforeParsing) {
  for (const char bracket : {'[', '{'}) {
    const auto deep = Tokenizer::Parse(std::string(1'000'000, bracket));
    EXPECT_EQ(deep.status().code(), StatusCode::kResourceExhausted);
  }
}

TEST(HostileTokenizer, EveryTruncationIsRefused) {
  const std::string json = ReadTextData("no_decoder.json");
  for (size_t n = 0; n < json.size(); ++n) EXPECT_FALSE(Tokenizer::Parse(json.substr(0, n)).ok()) << n;
  EXPECT_FALSE(Tokenizer::Parse(json + "x").ok());
}

TEST(HostileTokenizer, BrokenPartsAreRefusedByName) {
  const struct {
    std::string file, from, to, words;
  } cases[] = {
      {"no_decoder", R"("version": "1.0")", R"("version": "2.0")", "version"},
      {"no_decoder", R"("decoder": null)", R"("decoder": {"type": "Secret"})", "Secret"},
      {"no_decoder", R"("decoder": null)", R"("decoder": 7)", ""},
      {"no_decoder", R"("post_processor": null)", R"("post_processor": {"type": "Nothing"})", "Nothing"},
      {"no_decoder", R"("added_tokens": [])",
       R"("added_tokens": [{"id": 9, "content": "x", "single_word": false, "lstrip": false, "rstrip": false, )"
       R"("normalized": false, "special": true}])",
       "says id 9, but by its place it gets 4"},
      {"qwen_like", R"("dropout": null)", R"("dropout": 0.1)", "dropout"},
      {"qwen_like", R"("Regex": ")", R"("Regex": "(((((((((((((((()", ""},
  };
  for (const auto& c : cases) {
    const auto tokenizer = Tokenizer::Parse(Altered(c.file, c.from, c.to));
    ASSERT_FALSE(tokenizer.ok()) << c.to;
    EXPECT_NE(tokenizer.status().message().find(c.words), std::string::npos) << tokenizer.status().message();
  }
}

TEST(HostileTokenizer, CostlyPatternsEnd) {
  const struct {
    std::string pattern, text;
  } cases[] = {
      {"(a|a)*(?=b)c", std::string(200, 'a')},                       // exponential with backtracking
      {"(?=(a+)+$)a", std::string(60, 'a') + "b"},                   // the same behind a look-ahead
      {".*[^A-Z]|[A-Z]", std::string(200'000, 'A')},                 // quadratic over all matches
      {"((a{1,100}){1,100}){1,100}", std::string(1000, 'a')},        // large when compiled
      {std::string(5000, '(') + "a" + std::string(5000, ')'), "a"},  // deep
  };
  for (const auto& c : cases) {
    const double seconds = SecondsOf([&] {
      std::string escaped = DumpJson(Json(c.pattern));
      const std::string part = R"("pre_tokenizer": {"type": "Split", "pattern": {"Regex": )" + escaped +
                               R"(}, "behavior": "Isolated", "invert": false})";
      const auto tokenizer =
          Tokenizer::Parse(Altered("no_decoder", R"("pre_tokenizer": {"type": "WhitespaceSplit"})", part));
      if (tokenizer.ok()) (void)(*tokenizer)->Encode(c.text, {.max_ms = 500});
    });
    EXPECT_LT(seconds, 3.0) << c.pattern.substr(0, 40);
  }
}

TEST(HostileText, LongRunsTakeLinearTimeOrAreCutOff) {
  const std::string joiner = "👩\u200D";
  std::string emoji;
  while (emoji.size() < 200'000) emoji += joiner;
  std::string specials;
  while (specials.size() < 200'000) specials += "<mask>  <s>[INST]<|im_end|>";
  for (const std::string name : {"qwen_like", "llama3_like", "llama2_like", "mistral_like", "odd_added_tokens"}) {
    const auto tokenizer = LoadTestTokenizer(name);
    for (const std::string& text :
         {std::string(200'000, 'a'), std::string(200'000, ' '), std::string(200'000, '\n') + "a", emoji, specials,
          std::string(200'000, '<'), std::string(1'100'000, ' ') + "a"}) {
      const double seconds = SecondsOf([&] { (void)tokenizer->Encode(text, {.parse_special_tokens = true}); });
      EXPECT_LT(seconds, 20.0) << name << " " << text.substr(0, 20);
    }
  }
}

TEST(HostileText, TheDeadlineEndsAnEncoding) {
  const auto tokenizer = LoadTestTokenizer("qwen_like");
  std::string text;
  while (text.size() < 2'000'000) text += "some words here ";
  EXPECT_EQ(tokenizer->Encode(text, {.max_ms = 1}).status().code(), StatusCode::kDeadlineExceeded);
}

TEST(Tokenizer, ServesManyThreadsAtOnce) {
  const auto tokenizer = LoadTestTokenizer("qwen_like");
  const Json rows = ReadJsonData("qwen_like.expected.json")["encode"];
  std::vector<std::thread> threads;
  std::atomic<int> n_wrong = 0;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (const Json& row : rows) {
        const auto ids = tokenizer->Encode(row["text"].get<std::string>());
        if (!ids.ok() || *ids != row["plain"].get<Ids>()) ++n_wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(n_wrong, 0);
}

}  // namespace
}  // namespace df
