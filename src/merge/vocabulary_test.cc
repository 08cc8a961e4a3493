// Models whose tokenizers differ: rows go by their tokens.
#include "merge/vocabulary.h"

#include <fstream>

#include "base/json.h"
#include "merge/models_fixture.h"
#include "text/tokenizer.h"

namespace df::merge {
namespace {

using testing::ExpectRefusal;
using testing::MadeModel;
using testing::ValueOrDie;
using testing::WriteModel;

// A tokenizer whose words are these, in order; those in <> are added tokens.
std::string TokenizerOf(const std::vector<std::string>& words) {
  Json vocab = Json::object(), added = Json::array();
  for (size_t id = 0; id < words.size(); ++id) {
    vocab[words[id]] = id;
    if (!words[id].starts_with("<")) continue;
    added.push_back({{"id", id},
                     {"content", words[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const Json model = {{"type", "WordLevel"}, {"vocab", vocab}, {"unk_token", words[0]}};
  const Json tokenizer = {
      {"version", "1.0"},          {"truncation", nullptr}, {"padding", nullptr},
      {"added_tokens", added},     {"normalizer", nullptr}, {"pre_tokenizer", {{"type", "WhitespaceSplit"}}},
      {"post_processor", nullptr}, {"decoder", nullptr},    {"model", model}};
  return DumpJson(tokenizer);
}

class VocabularyTest : public ModelsTest {
 protected:
  // `rows` of the embedding, which may be more than there are words.
  void Write(const std::string& name, const std::vector<std::string>& words, size_t rows, uint64_t seed) {
    MadeModel model = base_;
    model.vocab = rows;
    model.change = seed == 0 ? 0 : 0.2;
    model.change_seed = seed;
    WriteModel(model, Sub(name));
    DF_ASSERT_OK(WriteFileAtomically(Sub(name) + "/tokenizer.json", TokenizerOf(words)));
  }
  Values Row(const Weights& weights, size_t row) const {
    const Values& all = weights.at(kEmbeddingName);
    const auto at = all.begin() + static_cast<std::ptrdiff_t>(row * base_.d_model);
    return {at, at + static_cast<std::ptrdiff_t>(base_.d_model)};
  }
  void ExpectRow(const Weights& out, size_t row, const Values& want) const {
    const Values got = Row(out, row);
    for (size_t j = 0; j < want.size(); ++j) ASSERT_NEAR(got[j], want[j], 1e-6) << "row " << row << " column " << j;
  }
  Weights Out() const { return WeightsOf(Sub("out")); }

  static Values Mix(double a, const Values& x, double b, const Values& y) {
    Values sum(x.size());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = a * x[i] + b * y[i];
    return sum;
  }
};

const std::string kModels = "base_model: @b\nmodels: [{model: @x}, {model: @y}]\nout_dtype: float32\n";
const std::string kSum = kModels + "merge_method: task_arithmetic\nparameters: {weight: 1}\n";

TEST_F(VocabularyTest, AUnionGrowsTheEmbeddingAndTheTokenizer) {
  Write("b", {"<unk>", "one", "two"}, 4, 0);
  Write("x", {"<unk>", "two", "one", "<tool>"}, 4, 1);           // permuted, and a token of its own
  Write("y", {"<unk>", "one", "two", "three", "<tool>"}, 8, 2);  // both
  const MergeReport report = ValueOrDie(Run(Read(kSum + "tokenizer: {source: union, pad_to_multiple_of: 4}\n")));
  EXPECT_EQ(report.vocab, 8U);
  EXPECT_EQ(report.n_added_tokens, 2U);
  EXPECT_EQ(ValueOrDie(LoadModelConfig(Sub("out"))).vocab, 8U);
  const auto tokenizer = ValueOrDie(Tokenizer::Load(Sub("out") + "/tokenizer.json"));
  EXPECT_EQ(tokenizer->IdOrNull("one"), 1);
  EXPECT_EQ(tokenizer->IdOrNull("<tool>"), 3);
  EXPECT_EQ(tokenizer->IdOrNull("three"), 4);
  EXPECT_TRUE(tokenizer->IsSpecial(3));
  EXPECT_EQ(ValueOrDie(tokenizer->Encode("two three")), (std::vector<int32_t>{2, 4}));

  const Weights b = WeightsOf(Sub("b")), x = WeightsOf(Sub("x")), y = WeightsOf(Sub("y")), out = Out();
  // W = b + (x - b) + (y - b), each by its own place of the token.
  ExpectRow(out, 1, Mix(1, Mix(1, Row(x, 2), 1, Row(y, 1)), -1, Row(b, 1)));
  ExpectRow(out, 2, Mix(1, Mix(1, Row(x, 1), 1, Row(y, 2)), -1, Row(b, 2)));
  // The base lacks <tool>: it starts from the mean of the two that have it, m + (x - m) + (y - m).
  ExpectRow(out, 3, Mix(0.5, Row(x, 3), 0.5, Row(y, 4)));
  ExpectRow(out, 4, Row(y, 3));
  for (size_t row = 5; row < 8; ++row) ExpectRow(out, row, Values(base_.d_model, 0.0));
}

TEST_F(VocabularyTest, TheBasesTokenizerKeepsItsRowsAndTakesOthersByToken) {
  Write("b", {"<unk>", "one", "two", "three"}, 6, 0);
  Write("x", {"<unk>", "two", "<tool>"}, 3, 1);
  Write("y", {"<unk>", "one", "two", "three"}, 6, 2);
  DF_ASSERT_OK(Run(Read(kSum + "tokenizer_source: base\n")));
  const Weights b = WeightsOf(Sub("b")), x = WeightsOf(Sub("x")), y = WeightsOf(Sub("y")), out = Out();
  ExpectRow(out, 2, Mix(1, Mix(1, Row(x, 1), 1, Row(y, 2)), -1, Row(b, 2)));
  ExpectRow(out, 1, Row(y, 1));  // x lacks it, and so has no difference
  for (size_t row = 4; row < 6; ++row) ExpectRow(out, row, Row(b, row));
  EXPECT_EQ(ValueOrDie(ReadFileBounded(Sub("out") + "/tokenizer.json", 1 << 20)),
            TokenizerOf({"<unk>", "one", "two", "three"}));
}

TEST_F(VocabularyTest, AModelsTokenizerComesWithItsIdsOfSpecialTokens) {
  Write("b", {"<unk>", "one"}, 2, 0);
  Write("x", {"<unk>", "two", "one"}, 3, 1);
  Write("y", {"<unk>", "one"}, 2, 2);
  const std::string config = testing::ConfigOf({.vocab = 3});
  DF_ASSERT_OK(WriteFileAtomically(Sub("x") + "/config.json", "{\"eos_token_id\": 2, " + config.substr(1)));
  DF_ASSERT_OK(WriteFileAtomically(
      Sub("x") + "/config.json", "{\"eos_token_id\": 2, " + testing::ConfigOf({.n_layers = 3, .vocab = 3}).substr(1)));
  DF_ASSERT_OK(Run(Read(kSum + "tokenizer: {source: @x}\n")));
  EXPECT_EQ(ValueOrDie(ReadJsonFile(Sub("out") + "/config.json"))["eos_token_id"], 2);
  const Weights b = WeightsOf(Sub("b")), x = WeightsOf(Sub("x")), y = WeightsOf(Sub("y"));
  ExpectRow(Out(), 1, Row(x, 1));
  ExpectRow(Out(), 2, Mix(1, Mix(1, Row(x, 2), 1, Row(y, 1)), -1, Row(b, 1)));
}

TEST_F(VocabularyTest, UnsaidIdsThatStandForTwoTokensAreRefusedByName) {
  Write("b", {"<unk>", "one", "two"}, 3, 0);
  Write("x", {"<unk>", "two", "one"}, 3, 1);
  Write("y", {"<unk>", "one", "two"}, 3, 2);
  ExpectRefusal(Run(Read(kSum)), StatusCode::kFailedPrecondition,
                {"token 1", "\"two\" in x", "\"one\" in b", "source: base"});
  std::filesystem::remove(Sub("x") + "/tokenizer.json");
  DF_ASSERT_OK(Run(Read(kSum)));
  ExpectRefusal(Run(Read(kSum + "tokenizer_source: union\n"), {.replace = true}), StatusCode::kFailedPrecondition,
                {"x", "no tokenizer.json"});
  DF_ASSERT_OK(WriteFileAtomically(Sub("x") + "/tokenizer.json", "{\"model\": 1}"));
  ExpectRefusal(Run(Read(kSum + "tokenizer_source: union\n"), {.replace = true}), StatusCode::kCorrupt,
                {"x/tokenizer.json"});
}

TEST_F(VocabularyTest, AHeadOfItsOwnIsMatchedAsTheEmbeddingIs) {
  base_.tied = false;
  base_.stores_head = true;
  Write("b", {"<unk>", "one", "two"}, 3, 0);
  Write("x", {"<unk>", "two", "one"}, 3, 1);
  Write("y", {"<unk>", "one", "two", "new"}, 4, 2);
  DF_ASSERT_OK(Run(Read(kModels + "merge_method: linear\nparameters: {weight: 1}\ntokenizer_source: union\n")));
  const Weights x = WeightsOf(Sub("x")), y = WeightsOf(Sub("y")), out = Out();
  const auto head = [&](const Weights& weights, size_t row) { return weights.at(kHeadName)[row * base_.d_model]; };
  EXPECT_NEAR(head(out, 1), (head(x, 2) + head(y, 1)) / 2, 1e-6);
  EXPECT_NEAR(head(out, 3), head(y, 3), 1e-6);
}

// Of three tokens: what is in its place is not copied, what is one source's row is not widened.
TEST(MatchedTypes, HoldNoMoreThanTheRowsNeed) {
  using Types = std::vector<std::optional<DType>>;
  const DType bf16 = DType::kBf16;
  const std::vector<int32_t> in_place = {0, 1, 2}, turned = {0, 2, 1}, short_of_one = {0, 1, kNoRow};
  const MatchOptions with_base{.has_base = true}, fills_only{.has_base = true, .makes_base = false}, models{};
  const auto types = [&](std::vector<std::vector<int32_t>> row_of, const MatchOptions& options,
                         const std::vector<MatchSource>& sources) {
    return MatchedTypes({.rows = 3, .row_of = std::move(row_of)}, options, sources);
  };
  EXPECT_EQ(types({in_place, in_place}, with_base, {{bf16, 3}, {bf16, 5}}), (Types{{}, {}}));
  EXPECT_EQ(types({in_place, turned}, with_base, {{bf16, 3}, {bf16, 3}}), (Types{{}, bf16}));
  EXPECT_EQ(types({in_place, short_of_one}, with_base, {{bf16, 3}, {bf16, 2}}), (Types{{}, bf16}));  // the base's row
  EXPECT_EQ(types({in_place, short_of_one}, with_base, {{DType::kF16, 3}, {bf16, 2}}), (Types{{}, DType::kF32}));
  EXPECT_EQ(types({in_place, turned}, with_base, {{DType::kF16, 3}, {bf16, 3}}), (Types{{}, bf16}));
  EXPECT_EQ(types({turned, turned}, fills_only, {{bf16, 3}, {bf16, 3}}), (Types{{}, bf16}));
  // A mean of two: the third model's row, or the base's.
  EXPECT_EQ(types({turned, turned, short_of_one}, models, {{bf16, 3}, {bf16, 3}, {bf16, 2}}),
            (Types{bf16, bf16, DType::kF32}));
  EXPECT_EQ(types({short_of_one, turned, turned}, with_base, {{bf16, 2}, {bf16, 3}, {bf16, 3}}),
            (Types{DType::kF32, bf16, bf16}));
  EXPECT_EQ(types({short_of_one, turned, turned}, fills_only, {{bf16, 2}, {bf16, 3}, {bf16, 3}}),
            (Types{{}, bf16, bf16}));
}

}  // namespace
}  // namespace df::merge
