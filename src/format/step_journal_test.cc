#include "format/step_journal.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "testing/status_matchers.h"
#include "testing/temporary_directory.h"

namespace df {
namespace {

using testing::ReadFile;
using testing::TemporaryDirectory;
using testing::ValueOrDie;
using testing::WriteFile;

// Three steps of different sizes, one of them empty, then a beginning that was never made a step.
class StepJournalTest : public ::testing::Test {
 protected:
  StepJournalTest() {
    auto journal = ValueOrDie(StepJournal::Create(directory_.path(), {{"what", "a test"}}));
    const std::vector<std::string> pieces = {"first", "", "the third"};
    for (size_t i = 0; i < pieces.size(); ++i) {
      DF_EXPECT_OK(journal.Append(AsBytes(pieces[i])));
      DF_EXPECT_OK(journal.EndStep({{"place", i}}));
      spool_bytes_.push_back(journal.data_bytes());
    }
    DF_EXPECT_OK(journal.Append(AsBytes("unfinished")));
    journal_ = ReadFile(Journal());
    spool_ = ReadFile(Spool());
  }
  std::string Journal() const { return directory_ / StepJournal::kFileName; }
  std::string Spool() const { return directory_ / StepJournal::kSpoolName; }

  // What is found after the files became these.
  size_t StepsOf(const std::string& journal, const std::string& spool) {
    WriteFile(Journal(), journal);
    WriteFile(Spool(), spool);
    const auto again = ValueOrDie(StepJournal::Reopen(directory_.path()));
    EXPECT_EQ(again.task(), Json({{"what", "a test"}}));
    for (size_t i = 0; i < again.notes().size(); ++i) EXPECT_EQ(again.notes()[i], Json({{"place", i}}));
    EXPECT_EQ(again.data_bytes(), again.notes().empty() ? 0 : spool_bytes_[again.notes().size() - 1]);
    EXPECT_EQ(again.has_steps(), !again.notes().empty());
    return again.notes().size();
  }

  TemporaryDirectory directory_;
  std::string journal_, spool_;
  std::vector<uint64_t> spool_bytes_;
};

TEST_F(StepJournalTest, GivesBackWhatWasDoneAndGoesOnFromThere) {
  EXPECT_EQ(StepsOf(journal_, spool_), 3U);
  {
    auto again = ValueOrDie(StepJournal::Reopen(directory_.path()));
    DF_ASSERT_OK(again.Append(AsBytes("fourth")));
    DF_ASSERT_OK(again.EndStep({{"place", 3}}));
  }
  const auto last = ValueOrDie(StepJournal::Reopen(directory_.path()));
  EXPECT_EQ(last.notes().size(), 4U);
  EXPECT_EQ(AsText(ValueOrDie(last.MapData())->bytes()), "firstthe thirdfourth");
}

TEST_F(StepJournalTest, EveryTruncationKeepsTheStepsBefore) {
  const size_t head = journal_.find('\n') + 1;
  for (size_t size = head; size <= journal_.size(); ++size) {
    const std::string cut = journal_.substr(0, size);
    EXPECT_EQ(StepsOf(cut, spool_), static_cast<size_t>(std::ranges::count(cut, '\n')) - 1) << size;
  }
  for (size_t size = 0; size <= spool_.size(); ++size) {
    const size_t steps = size < 5 ? 0 : size < 14 ? 2 : 3;
    EXPECT_EQ(StepsOf(journal_, spool_.substr(0, size)), steps) << size;
  }
  for (size_t size = 0; size < head; ++size) {
    WriteFile(Journal(), journal_.substr(0, size));
    EXPECT_EQ(StepJournal::Reopen(directory_.path()).status().code(), StatusCode::kCorrupt) << size;
  }
}

TEST_F(StepJournalTest, AFlippedBitCostsItsStepAndThoseAfter) {
  const size_t head = journal_.find('\n') + 1;
  for (size_t at = head; at < journal_.size(); ++at) {
    std::string flipped = journal_;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    const auto before =
        static_cast<size_t>(std::count(journal_.begin(), journal_.begin() + static_cast<ptrdiff_t>(at), '\n'));
    EXPECT_EQ(StepsOf(flipped, spool_), before - 1) << at;
  }
  for (size_t at = 0; at < 14; ++at) {
    std::string flipped = spool_;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    EXPECT_EQ(StepsOf(journal_, flipped), at < 5 ? 0U : 2U) << at;
  }
}

TEST(StepJournal, WithRoomForAHeaderTheSpoolBecomesTheFile) {
  TemporaryDirectory directory;
  {
    auto journal = ValueOrDie(StepJournal::Create(directory.path(), {{"what", "a test"}}, 8));
    DF_ASSERT_OK(journal.Append(AsBytes("first")));
    DF_ASSERT_OK(journal.EndStep({{"place", 0}}));
    DF_ASSERT_OK(journal.Append(AsBytes("unfinished")));
  }
  auto journal = ValueOrDie(StepJournal::Reopen(directory.path()));
  EXPECT_EQ(journal.notes().size(), 1U);
  EXPECT_EQ(journal.first_byte(), 8U);
  EXPECT_EQ(journal.data_bytes(), 13U);
  DF_ASSERT_OK(journal.Append(AsBytes("second")));
  DF_ASSERT_OK(journal.EndStep({{"place", 1}}));
  DF_ASSERT_OK(journal.Publish("a header", directory / "file"));
  EXPECT_EQ(ReadFile(directory / "file"), "a headerfirstsecond");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1);
}

TEST(StepJournal, KilledBeforeItsFirstStepItHasTheRoomStill) {
  TemporaryDirectory directory;
  static_cast<void>(ValueOrDie(StepJournal::Create(directory.path(), {{"what", "a test"}}, 8)));
  auto journal = ValueOrDie(StepJournal::Reopen(directory.path()));
  EXPECT_EQ(journal.data_bytes(), 8U);
  DF_ASSERT_OK(journal.Append(AsBytes("data")));
  DF_ASSERT_OK(journal.Publish("a header", directory / "file"));
  EXPECT_EQ(ReadFile(directory / "file"), "a headerdata");
}

TEST_F(StepJournalTest, RemovesItsFiles) {
  auto again = ValueOrDie(StepJournal::Reopen(directory_.path()));
  DF_ASSERT_OK(again.Remove());
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

}  // namespace
}  // namespace df
