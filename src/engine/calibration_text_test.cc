#include "engine/calibration_text.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/atomic_file.h"
#include "engine/engine_fixture.h"
#include "testing/refusal.h"

namespace df {
namespace {

using testing::ExpectRefusal;
using testing::ValueOrDie;

using Sequences = std::vector<std::vector<int32_t>>;

class OwnText : public EngineFixture {
 protected:
  static Sequences Sample(const EngineOptions& options, const CalibrationTextOptions& text) {
    return ValueOrDie(SampleOwnText(*MakeEngine(options), {3, 1}, text));
  }
};

TEST_F(OwnText, IsAFunctionOfTheSeedAlone) {
  const CalibrationTextOptions text{.n_sequences = 5, .n_tokens = 12, .seed = 7};
  const Sequences first = Sample({.n_threads = 1}, text);
  ASSERT_EQ(first.size(), 5U);
  for (const std::vector<int32_t>& sequence : first) {
    ASSERT_EQ(sequence.size(), 12U);
    EXPECT_EQ(sequence[0], 3);
    EXPECT_EQ(sequence[1], 1);
    for (const int32_t id : sequence) EXPECT_LT(static_cast<size_t>(id), weights_.base->config.vocab);
  }
  EXPECT_NE(first[0], first[1]);
  EXPECT_EQ(Sample({.n_threads = 3}, text), first);
  EXPECT_EQ(Sample({.n_threads = 2, .max_num_seqs = 2}, text), first);
  EXPECT_NE(Sample({.n_threads = 1}, {.n_sequences = 5, .n_tokens = 12, .seed = 8}), first);
}

TEST_F(OwnText, IsItsOpeningWhereNoMoreIsAskedFor) {
  EXPECT_EQ(Sample({}, {.n_sequences = 2, .n_tokens = 2}), Sequences(2, {3, 1}));
  EXPECT_EQ(Sample({}, {.n_sequences = 2, .n_tokens = 1}), Sequences(2, {3}));
}

TEST_F(OwnText, EndsWhenItIsToldTo) {
  const auto engine = MakeEngine({});
  ExpectRefusal(SampleOwnText(*engine, {3}, {.n_sequences = 3, .n_tokens = 40, .go_on = [] { return false; }}),
                StatusCode::kCancelled, {"calibration text"});
}

class CalibrationFile : public ::testing::Test {
 protected:
  Result<Sequences> Read(const std::string& content, const CalibrationTextOptions& options = {}) {
    const std::string path = directory_ / "text";
    DF_EXPECT_OK(WriteFileAtomically(path, content));
    return ReadCalibrationFile(path, text_, options);
  }
  std::string Decoded(const std::vector<int32_t>& ids) {
    return ValueOrDie(text_.tokenizer->Decode(ids, {.skip_special_tokens = false}));
  }

  ModelText text_ = ValueOrDie(LoadModelText(DELTAFOLD_SOURCE_DIR "/demo/zen-mini-base"));
  testing::TemporaryDirectory directory_{"deltafold-calibration"};
};

TEST_F(CalibrationFile, AChatBeginsWithWhatItsTemplateWrites) {
  EXPECT_EQ(Decoded(OpeningTokens(text_)), "<|im_start|>user\n");
  ModelText plain = text_;
  plain.chat_template = nullptr;
  plain.bos_id.reset();
  EXPECT_TRUE(OpeningTokens(plain).empty());
  plain.bos_id = 5;
  EXPECT_EQ(OpeningTokens(plain), std::vector<int32_t>{5});
}

TEST_F(CalibrationFile, HoldsChatsAndTextsALine) {
  const Sequences sequences =
      ValueOrDie(Read("{\"messages\": [{\"role\": \"user\", \"content\": \"Compute 1 + 2.\"}], \"answer\": \"3\"}\n\n"
                      "{\"messages\": [{\"role\": \"user\", \"content\": \"<|im_end|>\"}]}\r\n"
                      "{\"text\": \"Plain words.\"}"));
  ASSERT_EQ(sequences.size(), 3U);
  EXPECT_EQ(Decoded(sequences[0]), "<|im_start|>user\nCompute 1 + 2.<|im_end|>\n<|im_start|>assistant\n3<|im_end|>\n");
  EXPECT_EQ(Decoded(sequences[2]), "Plain words.");
}

TEST_F(CalibrationFile, IsReadNoFurtherThanNeeded) {
  std::string words;
  for (int i = 0; i < 3000; ++i) words += "word ";
  const Sequences all = ValueOrDie(Read(words, {.n_sequences = 100, .n_tokens = 100}));
  ASSERT_GT(all.size(), 1U);
  for (const std::vector<int32_t>& sequence : all) EXPECT_LE(sequence.size(), kWindowTokens);
  size_t n_tokens = 0;
  for (const auto& sequence : ValueOrDie(Read(words, {.n_sequences = 7, .n_tokens = 100}))) n_tokens += sequence.size();
  EXPECT_EQ(n_tokens, 700U);
  const Sequences lines =
      ValueOrDie(Read("{\"text\": \"a b c\"}\n{\"text\": \"d\"}\nnot read", {.n_sequences = 1, .n_tokens = 2}));
  EXPECT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].size(), 2U);
}

TEST_F(CalibrationFile, NamesTheLineThatIsNone) {
  ExpectRefusal(Read("{\"text\": \"a\"}\n{\"words\": 1}\n"), StatusCode::kInvalidArgument,
                {"text", "line 2", "messages"});
  ExpectRefusal(Read("{\"text\": \"a\"}\n{\"text\": "), StatusCode::kCorrupt, {"line 2"});
  ExpectRefusal(Read("{\"messages\": [{\"role\": 7}]}"), StatusCode::kInvalidArgument, {"line 1"});
  ExpectRefusal(Read(""), StatusCode::kInvalidArgument, {"no token"});
  ExpectRefusal(ReadCalibrationFile(directory_ / "absent", text_, {}), StatusCode::kNotFound, {"absent"});
}

TEST(RandomTokens, AreOfTheVocabularyAndOfTheSeed) {
  const Sequences first = RandomTokens(11, {.n_sequences = 3, .n_tokens = 50, .seed = 1});
  ASSERT_EQ(first.size(), 3U);
  std::vector<size_t> counts(11);
  for (const auto& sequence : first) {
    ASSERT_EQ(sequence.size(), 50U);
    for (const int32_t id : sequence) ++counts.at(static_cast<size_t>(id));
  }
  for (const size_t count : counts) EXPECT_GT(count, 0U);
  EXPECT_EQ(RandomTokens(11, {.n_sequences = 3, .n_tokens = 50, .seed = 1}), first);
  EXPECT_NE(RandomTokens(11, {.n_sequences = 3, .n_tokens = 50, .seed = 2}), first);
}

}  // namespace
}  // namespace df
