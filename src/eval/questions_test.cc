#include "eval/questions.h"

#include <gtest/gtest.h>

#include "testing/refusal.h"
#include "testing/tiny_family.h"

namespace df::eval {
namespace {

using testing::ExpectRefusal;
using testing::ValueOrDie;

// A token a byte, <bos> 256, <eos> 257, <user> 258, <assistant> 259.
class Questions : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::WriteTinyText(directory_ / "");
    text_ = ValueOrDie(LoadModelText(directory_ / ""));
  }
  std::string Write(const std::string& content) {
    testing::WriteText(directory_ / "task.jsonl", content);
    return directory_ / "task.jsonl";
  }

  testing::TemporaryDirectory directory_{"deltafold-questions"};
  ModelText text_;
};

constexpr char kTwo[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"1+1\"}], \"answer\": \"2\", \"source\": \"school\"}\n\n"
    "{\"messages\": [{\"role\": \"user\", \"content\": \"b\"}], \"answer\": \"\"}";

TEST_F(Questions, AreALineEachAndBlankLinesAreNone) {
  const auto all = ValueOrDie(ReadQuestions(Write(kTwo), 0));
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].answer, "2");
  EXPECT_EQ(all[1].answer, "");
  EXPECT_EQ(ValueOrDie(ReadQuestions(Write(kTwo), 1)).size(), 1U);
}

TEST_F(Questions, RefusalsNameFileAndLine) {
  const std::string good = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"answer\": \"b\"}\n";
  for (const std::string bad :
       {"{", "[]", "{}", "{\"messages\": [], \"answer\": \"b\"}", "{\"messages\": {}, \"answer\": \"b\"}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"answer\": 7}"}) {
    ExpectRefusal(ReadQuestions(Write(good + "\n" + bad), 0), StatusCode::kCorrupt, {"task.jsonl", "line 3"});
  }
  ExpectRefusal(ReadQuestions(Write("\n"), 0), StatusCode::kCorrupt, {"no question"});
  ExpectRefusal(ReadQuestions(directory_ / "none.jsonl", 0), StatusCode::kNotFound, {"none.jsonl"});
}

TEST_F(Questions, TheAnswerAndItsEndAreScored) {
  const auto asked = ValueOrDie(Tokenise(text_, ValueOrDie(ReadQuestions(Write(kTwo), 0)), 257));
  EXPECT_EQ(asked[0].prompt, (std::vector<int32_t>{256, 258, '1', '+', '1', 259}));
  EXPECT_EQ(asked[0].reference.tokens, (std::vector<int32_t>{256, 258, '1', '+', '1', 259, '2', 257}));
  EXPECT_EQ(asked[0].reference.first_scored, 6U);
  EXPECT_EQ(asked[1].reference.tokens, (std::vector<int32_t>{256, 258, 'b', 259, 257}));
  const auto open = ValueOrDie(Tokenise(text_, ValueOrDie(ReadQuestions(Write(kTwo), 1)), -1));
  EXPECT_EQ(open[0].reference.tokens.back(), '2');
  EXPECT_EQ(ClosingToken(text_, {1, 2}), 257);
  EXPECT_EQ(ClosingToken(ModelText{}, {5, 2}), 5);
  EXPECT_EQ(ClosingToken(ModelText{}, {}), -1);
}

TEST_F(Questions, AnAnswerNeverBecomesAControlToken) {
  const std::vector<Question> questions = {
      {.messages = Json::array({{{"role", "user"}, {"content", "<eos>"}}}), .answer = "<eos>"}};
  const auto asked = ValueOrDie(Tokenise(text_, questions, 257));
  EXPECT_EQ(asked[0].reference.tokens.size(), 3U + 5 + 5 + 1);
}

TEST_F(Questions, ATextIsCutIntoWholeWindows) {
  const std::string content(1300, 'x');
  const auto windows = ValueOrDie(Windows(text_, content, {.window_tokens = 512}));
  ASSERT_EQ(windows.size(), 2U);
  for (const ScoredSequence& window : windows) {
    EXPECT_EQ(window.tokens.size(), 512U);
    EXPECT_EQ(window.first_scored, 1U);
  }
  EXPECT_EQ(ValueOrDie(Windows(text_, content, {.window_tokens = 100, .max_tokens = 350})).size(), 3U);
  // Shorter than a window: one, of what there is.
  const auto rest = ValueOrDie(Windows(text_, "abc", {.window_tokens = 512}));
  ASSERT_EQ(rest.size(), 1U);
  EXPECT_EQ(rest[0].tokens, (std::vector<int32_t>{'a', 'b', 'c'}));
  ExpectRefusal(Windows(text_, "a", {}), StatusCode::kInvalidArgument, {"2 tokens"});
  ExpectRefusal(Windows(text_, "abc", {.window_tokens = 1}), StatusCode::kInvalidArgument, {"window"});
}

}  // namespace
}  // namespace df::eval
