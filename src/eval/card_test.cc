#include "eval/card.h"

#include <gtest/gtest.h>

#include "base/atomic_file.h"
#include "testing/refusal.h"
#include "testing/tiny_family.h"

namespace df::eval {
namespace {

using testing::ExpectRefusal;
using testing::ValueOrDie;

constexpr char kCard[] = "---\nbase_model: \"b\"\n---\n\n# Delta\n";

ReportRow Measured() {
  ReportRow row;
  row.variant = "math";
  row.code = "auto";
  row.task = "ma|th`";
  row.bits_per_weight = 1.349;
  row.n = 200;
  row.exact_match = {.value = 96, .interval = {93, 98.5}};
  row.exact_match_difference = {.value = -3, .interval = {-5.5, -1}};
  row.answer_kl = {.value = 0.0158, .interval = {0.01, 0.02}};
  row.answer_top1 = 0.995;
  return row;
}

ReportRow Full() {
  ReportRow row;
  row.variant = "math";
  row.code = "full";
  row.bits_per_weight = 16;
  row.exact_match = {.value = 99, .interval = {97.5, 100}};
  return row;
}

size_t Count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(EvalCard, HoldsWhatWasMeasuredAndNothingElse) {
  const ReportRow full = Full();
  const std::string section = MeasuredSection(Measured(), &full, {.text = "", .program = "deltafold 1"});
  EXPECT_NE(
      section.find("| exact match, 200 questions of `ma\\|th`, % | 99.0 | 96.0 [93.0, 98.5] | -3.0 [-5.5, -1.0] |"),
      std::string::npos)
      << section;
  EXPECT_NE(section.find("0.01580 [0.01000, 0.02000]"), std::string::npos);
  EXPECT_EQ(section.find("perplexity"), std::string::npos);
  ReportRow text_only;
  text_only.perplexity = 12.5;
  const std::string other = MeasuredSection(text_only, nullptr, {.text = "t.txt", .program = "deltafold 1"});
  EXPECT_NE(other.find("| perplexity of `t.txt`; difference of logarithms |  | 12.500 |  |"), std::string::npos)
      << other;
  EXPECT_EQ(other.find("exact match"), std::string::npos);
}

TEST(EvalCard, IsReplacedAndTheRestOfTheCardStays) {
  const std::string first = MeasuredSection(Measured(), nullptr, {.text = "", .program = "one"});
  const std::string second = MeasuredSection(Measured(), nullptr, {.text = "", .program = "two"});
  const std::string once = WithSection(kCard, first);
  EXPECT_EQ(once, std::string(kCard) + "\n" + first);
  EXPECT_EQ(WithSection(once, first), once);
  EXPECT_EQ(WithSection(once + "\nmine\n", second), std::string(kCard) + "\n" + second + "\nmine\n");
  EXPECT_EQ(WithSection("", first), first);
  // A mark without its other one is text like any other.
  const std::string torn = once.substr(0, once.size() - 10);
  EXPECT_EQ(WithSection(torn, second), torn + "\n\n" + second);
}

TEST(EvalCard, IsWrittenBesideEachDeltaThatWasMeasured) {
  const testing::TemporaryDirectory directory("deltafold-card");
  std::filesystem::create_directory(directory / "delta");
  std::filesystem::create_directory(directory / "bare");
  testing::WriteText(directory / "delta/README.md", kCard);
  Report report;
  report.rows = {Full(), Measured(), Measured()};
  report.rows[1].delta_directory = directory / "delta";
  report.rows[2].delta_directory = directory / "bare";
  for (int round = 0; round < 2; ++round) {
    for (const char* name : {"delta", "bare"}) DF_EXPECT_OK(CheckCardOf(directory / name));
    DF_ASSERT_OK(WriteCards(report, {.text = "", .program = "deltafold 1"}));
    for (const char* name : {"delta/README.md", "bare/README.md"}) {
      const std::string card = ValueOrDie(ReadFileBounded(directory / name, size_t{1} << 20));
      EXPECT_EQ(Count(card, "## Measured"), 1U) << name;
      EXPECT_NE(card.find("| 99.0 | 96.0"), std::string::npos) << "beside the full fine-tune";
      EXPECT_EQ(card.starts_with(kCard), name[0] == 'd') << name;
    }
  }
  ExpectRefusal(CheckCardOf(directory / "none"), StatusCode::kIo, {"none"});
  report.rows[2].delta_directory = directory / "none";
  EXPECT_FALSE(WriteCards(report, {.text = "", .program = "deltafold 1"}).ok());
}

}  // namespace
}  // namespace df::eval
