#include "merge/yaml_text.h"

#include <gtest/gtest.h>

#include <string>

#include "testing/refusal.h"

namespace df::merge {
namespace {

using testing::ExpectRefusal;
using testing::ValueOrDie;

TEST(YamlText, ReadsMapsListsAndScalarsWithTheirLines) {
  const YamlNode root = ValueOrDie(ParseYaml("a: 1\nb:\n  - x\n  - {y: \"2\"}\nc: ~\n"));
  ASSERT_EQ(root.kind, YamlNode::Kind::kMap);
  EXPECT_EQ(root.MemberOrNull("a")->scalar, "1");
  EXPECT_EQ(root.MemberOrNull("a")->line, 1U);
  const YamlNode& list = *root.MemberOrNull("b");
  ASSERT_EQ(list.items.size(), 2U);
  EXPECT_EQ(list.items[0].line, 3U);
  EXPECT_TRUE(list.items[1].MemberOrNull("y")->is_quoted);
  EXPECT_EQ(root.MemberOrNull("c")->kind, YamlNode::Kind::kNull);
  EXPECT_EQ(root.MemberOrNull("d"), nullptr);
}

TEST(YamlText, ReadsNumbersAndFlagsStrictly) {
  const auto number = [](const std::string& text) -> std::optional<double> {
    double value = 0;
    const YamlNode node = ValueOrDie(ParseYaml("a: " + text));
    return ReadNumber(*node.MemberOrNull("a"), value) ? std::optional(value) : std::nullopt;
  };
  EXPECT_EQ(number("0.5"), 0.5);
  EXPECT_EQ(number("-3"), -3.0);
  EXPECT_EQ(number("+1e-3"), 1e-3);
  EXPECT_EQ(number(".5"), 0.5);
  for (const char* text : {"\"0.5\"", "0.5x", ".nan", "nan", ".inf", "inf", "1e999", "0x10", "+", "true", "1 2"}) {
    EXPECT_EQ(number(text), std::nullopt) << text;
  }
  bool flag = false;
  EXPECT_TRUE(ReadFlag(ValueOrDie(ParseYaml("True")), flag));
  EXPECT_TRUE(flag);
  EXPECT_FALSE(ReadFlag(ValueOrDie(ParseYaml("yes")), flag));
  EXPECT_FALSE(ReadFlag(ValueOrDie(ParseYaml("'true'")), flag));
}

TEST(YamlText, AnAliasIsACopyOfWhatItNames) {
  const YamlNode root = ValueOrDie(ParseYaml("a: &x {w: 1}\nb: *x\n"));
  EXPECT_EQ(root.MemberOrNull("b")->MemberOrNull("w")->scalar, "1");
  EXPECT_EQ(root.MemberOrNull("b")->line, 2U);
}

TEST(YamlText, RefusesABombOfAliasesBeforeItGrows) {
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string before = "*a" + std::to_string(i - 1);
    text += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int j = 0; j < 10; ++j) text += (j > 0 ? ", " : "") + before;
    text += "]\n";
  }
  ExpectRefusal(ParseYaml(text), StatusCode::kResourceExhausted, {"line 5", "values", "aliases"});
}

TEST(YamlText, RefusesDepthSizeAndCount) {
  ExpectRefusal(ParseYaml("a: " + std::string(5000, '[')), StatusCode::kResourceExhausted, {"line 1", "16 deep"});
  std::string block;
  for (int i = 0; i < 40; ++i) block += std::string(static_cast<size_t>(i), ' ') + "a:\n";
  ExpectRefusal(ParseYaml(block), StatusCode::kResourceExhausted, {"16 deep"});
  ExpectRefusal(ParseYaml(std::string((size_t{1} << 20) + 1, ' ')), StatusCode::kResourceExhausted, {"1048577 bytes"});
  std::string many = "[";
  for (int i = 0; i < 20000; ++i) many += "1,";
  ExpectRefusal(ParseYaml(many + "1]"), StatusCode::kResourceExhausted, {"20000 values"});
}

TEST(YamlText, RefusesWhatIsNoDocumentOfTextKeys) {
  ExpectRefusal(ParseYaml(""), StatusCode::kCorrupt, {"empty"});
  ExpectRefusal(ParseYaml("a: 1\n---\nb: 2\n"), StatusCode::kCorrupt, {"more than one document"});
  ExpectRefusal(ParseYaml("a: 1\na: 2\n"), StatusCode::kCorrupt, {"line 2", "\"a\"", "twice"});
  ExpectRefusal(ParseYaml("? [1]\n: 2\n"), StatusCode::kCorrupt, {"a key is expected to be text"});
  ExpectRefusal(ParseYaml("a: *nobody\n"), StatusCode::kCorrupt, {"line 1"});
  ExpectRefusal(ParseYaml("a: &x [*x]\n"), StatusCode::kCorrupt, {"line 1"});
  ExpectRefusal(ParseYaml("a: !!binary aGk=\n"), StatusCode::kCorrupt, {"line 1", "tag"});
  ExpectRefusal(ParseYaml("a: [1\nb: 2"), StatusCode::kCorrupt, {"line"});
  ExpectRefusal(ParseYaml("a: \xff\n"), StatusCode::kCorrupt, {"UTF-8"});
  ExpectRefusal(ParseYaml(std::string("a: 1\nb: \0x", 10)), StatusCode::kCorrupt, {"line 2", "control character"});
}

TEST(YamlText, EveryBeginningOfADocumentIsReadOrRefused) {
  const std::string text =
      "# a comment\nmerge_method: ties\nmodels:\n  - model: \"a\\n\"\n    parameters: {weight: [0.1, 0.9]}\n"
      "  - &m {model: 'b'}\n  - *m\ntext: |\n  block\n  of text\n...\n";
  size_t n_read = 0;
  for (size_t n = 0; n <= text.size(); ++n) {
    const auto node = ParseYaml(std::string_view(text).substr(0, n));
    if (node.ok()) ++n_read;
    EXPECT_EQ(node.ok(), node.status().message().empty());
  }
  EXPECT_GT(n_read, 10U);
}

}  // namespace
}  // namespace df::merge
