#include "tools/bounded_command.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/atomic_file.h"
#include "base/clock.h"
#include "testing/refusal.h"
#include "testing/tiny_family.h"

namespace df::tools {
namespace {

using testing::ExpectRefusal;
using testing::ValueOrDie;

TEST(BoundedCommand, GivesWhatWasPrintedApart) {
  const CommandOutput output = ValueOrDie(RunCommand("echo out; echo err >&2; cat", {}));
  EXPECT_EQ(output.out, "out\n");
  EXPECT_EQ(output.error, "err\n");
}

TEST(BoundedCommand, AFailureNamesStatusAndOutput) {
  ExpectRefusal(RunCommand("echo half; echo 'no such model' >&2; exit 3", {}), StatusCode::kFailedPrecondition,
                {"status 3", "half", "no such model", "exit 3"});
  ExpectRefusal(RunCommand("kill -9 $$", {}), StatusCode::kFailedPrecondition, {"signal 9", "printed nothing"});
  ExpectRefusal(RunCommand("no-such-program-here", {}), StatusCode::kFailedPrecondition, {"127"});
}

TEST(BoundedCommand, OneThatHangsIsEndedWithAllThatItStarted) {
  const testing::TemporaryDirectory directory("deltafold-command");
  const SteadyClock clock;
  const int64_t start_us = clock.NowUs();
  const std::string mark = ShellQuoted(directory / "mark");
  ExpectRefusal(RunCommand("echo begun; (sleep 1; echo late > " + mark + ") & sleep 30", {.timeout_s = 0.3}),
                StatusCode::kDeadlineExceeded, {"begun", "sleep 30"});
  EXPECT_LT(clock.NowUs() - start_us, 10'000'000);
  ValueOrDie(RunCommand("sleep 1.2", {}));
  EXPECT_FALSE(std::filesystem::exists(directory / "mark"));
}

TEST(BoundedCommand, DoesNotWaitForWhatItLeavesRunning) {
  const SteadyClock clock;
  const int64_t start_us = clock.NowUs();
  EXPECT_EQ(ValueOrDie(RunCommand("sleep 30 & echo 1", {})).out, "1\n");
  EXPECT_LT(clock.NowUs() - start_us, 10'000'000);
}

TEST(BoundedCommand, KeepsTheEndOfMuchOutput) {
  const CommandOutput output = ValueOrDie(RunCommand("yes 0123456789 | head -c 3000000; echo; echo 7", {}));
  EXPECT_LE(output.out.size(), size_t{200} << 10);
  EXPECT_EQ(LastNumber(output.out), 7);
}

TEST(BoundedCommand, EndsWhenItIsToldTo) {
  int n_asked = 0;
  ExpectRefusal(RunCommand("sleep 30", {.go_on = [&] { return ++n_asked < 3; }}), StatusCode::kCancelled, {"sleep 30"});
}

TEST(BoundedCommand, QuotesWhatAShellWouldRead) {
  const std::string odd = "a b'c $(d) \"e\" `f`\n;g";
  EXPECT_EQ(ValueOrDie(RunCommand("printf %s " + ShellQuoted(odd), {})).out, odd);
}

TEST(LastNumber, IsTheLastThatStandsByItself) {
  EXPECT_EQ(LastNumber("loss=0.25"), 0.25);
  EXPECT_EQ(LastNumber("{\"ppl\": 1.5e2}\n"), 150);
  EXPECT_EQ(LastNumber("score -3."), -3);
  EXPECT_EQ(LastNumber("95.5%"), 95.5);
  EXPECT_EQ(LastNumber("0.5 of checkpoint-360, step360"), 0.5);
  EXPECT_TRUE(std::isnan(LastNumber("loss nan").value_or(0)));
  EXPECT_TRUE(std::isinf(LastNumber("loss: inf").value_or(0)));
  for (const char* text : {"", "no number", "v1x", "0x10", "...", "- + ."}) EXPECT_FALSE(LastNumber(text)) << text;
}

}  // namespace
}  // namespace df::tools
