#include "codec/choose.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "testing/refusal.h"
#include "testing/status_matchers.h"

namespace df {
namespace {

using testing::ExpectRefusal;
using testing::ValueOrDie;

TEST(Code, ReadsWhatItWrites) {
  for (const char* text : {"scalar",
                           "row",
                           "column",
                           "rank1",
                           "planes2",
                           "planes8",
                           "lowrank",
                           "lowrank:1",
                           "lowrank:256",
                           "int8",
                           "rows",
                           "raw",
                           "exact",
                           "rank1+lowrank:16",
                           "scalar+lowrank:1",
                           "planes3+lowrank:4",
                           "planes2:scalar",
                           "planes3:row",
                           "planes8:column",
                           "planes2:row+lowrank:4"}) {
    EXPECT_EQ(CodeText(ValueOrDie(ParseCode(text))), text);
  }
  for (const char* text : {"",
                           "sign",
                           "Row",
                           "planes",
                           "planes1",
                           "planes9",
                           "planes02",
                           "lowrank:",
                           "lowrank:0",
                           "lowrank:257",
                           "lowrank:-1",
                           "lowrank:4x",
                           "raw+lowrank:4",
                           "rank1+",
                           "+lowrank:4",
                           "rank1+lowrank",
                           "rank1+rank1",
                           "planes2:",
                           "planes2:rank1",
                           "planes2:raw",
                           "planes:row",
                           "planes1:row",
                           "lowrank:2+lowrank:2",
                           "rank1+lowrank:4+lowrank:4"}) {
    ExpectRefusal(ParseCode(text), StatusCode::kInvalidArgument, {"no code", "planes2", "lowrank:R"});
  }
}

TEST(Budget, ReadsAmountsOfThreeKinds) {
  const auto bytes = [](const char* text) { return ValueOrDie(ParseBudget(text)).Bytes(1000, 2000); };
  EXPECT_EQ(bytes("24M"), 24'000'000U);
  EXPECT_EQ(bytes("1.5Ki"), 1536U);
  EXPECT_EQ(bytes("2Gi"), uint64_t{2} << 30);
  EXPECT_EQ(bytes("17"), 17U);
  EXPECT_EQ(bytes("1.6bpw"), 200U);
  EXPECT_EQ(bytes("12.5%"), 250U);
  EXPECT_EQ(BudgetText(ValueOrDie(ParseBudget("1.35bpw"))), "1.35bpw");
  EXPECT_EQ(BudgetText(ValueOrDie(ParseBudget("24M"))), "24000000");
  EXPECT_EQ(BudgetText(ValueOrDie(ParseBudget("7%"))), "7.0%");
  EXPECT_EQ(BudgetText(ValueOrDie(ParseBudget("0.57%"))), "0.57%");
  EXPECT_EQ(bytes("99999999999999999999999G"), uint64_t{1} << 62);
  for (const char* text :
       {"", "M", "-1", "0", "1e3", "1 M", "0x10", "inf", "nan", "%", "bpw", "1bpw%", "1Ti", "1.5.2"}) {
    ExpectRefusal(ParseBudget(text), StatusCode::kInvalidArgument, {"no amount of bytes", "bpw"});
  }
}

Candidate Of(size_t rank, uint64_t bytes, double error) {
  return {.code = {.kind = CodeKind::kLowRank, .rank = rank}, .bytes = bytes, .error = error, .loss = error * error};
}

TEST(Choose, ByErrorTakesTheSmallestThatKeepsIt) {
  const std::vector<Candidate> w = {Of(1, 10, 0.9), Of(2, 40, 0.2), Of(3, 30, 0.25), Of(4, 30, 0.22), Of(5, 90, 0)};
  EXPECT_EQ(ValueOrDie(ChooseByError({w}, {"w"}, 1.0))[0], 0U);
  EXPECT_EQ(ValueOrDie(ChooseByError({w}, {"w"}, 0.3))[0], 3U);
  EXPECT_EQ(ValueOrDie(ChooseByError({w}, {"w"}, 0.21))[0], 1U);
  EXPECT_EQ(ValueOrDie(ChooseByError({w}, {"w"}, 0.1))[0], 4U);
  ExpectRefusal(ChooseByError({w, {Of(1, 10, 0.5)}}, {"w", "v"}, 0.1), StatusCode::kFailedPrecondition,
                {"no code of v", "0.1", "0.5"});
}

TEST(Choose, ByErrorGoesOnToMoreBytesWhenOneMissed) {
  const std::vector<Candidate> w = {Of(1, 10, 0.2), Of(2, 30, 0.3), Of(3, 20, 0.1), Of(4, 90, 0), Of(5, 20, 0.05)};
  EXPECT_EQ(NextByError(w, 0, 0.2), 4U);
  EXPECT_EQ(NextByError(w, 4, 0.2), 3U);
  EXPECT_EQ(NextByError(w, 3, 0.2), std::nullopt);
}

TEST(Choose, ByBytesSaysWhatIsNeededAtLeast) {
  ExpectRefusal(ChooseByBytes({{Of(1, 10, 0.5)}, {Of(1, 30, 0.5), Of(2, 20, 0.6)}}, 29),
                StatusCode::kFailedPrecondition, {"30 bytes", "29"});
  EXPECT_EQ(ValueOrDie(ChooseByBytes({{Of(1, 10, 0.5)}, {Of(1, 30, 0.5), Of(2, 20, 0.6)}}, 30)),
            (std::vector<size_t>{0, 1}));
}

TEST(Choose, ByBytesStopsWhereNothingMoreIsSaved) {
  const std::vector<Candidate> w = {Of(1, 10, 0.9), Of(2, 20, 0), Of(3, 1000, 0)};
  EXPECT_EQ(ValueOrDie(ChooseByBytes({w}, 1'000'000))[0], 1U);
}

// The loss that is left, against the best choice of all by trying every one.
TEST(Choose, ByBytesIsWithinOneStepOfTheBest) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::vector<std::vector<Candidate>> weights(3);
    uint64_t most = 0;
    double largest_step = 0;
    for (size_t w = 0; w < 3; ++w) {
      for (size_t i = 0; i < 5; ++i) {
        const uint64_t bytes = 10 + RandomBits(seed, 10 * w + i) % 90;
        weights[w].push_back(Of(i, bytes, RandomUnit(seed, 100 + 10 * w + i)));
        most = std::max(most, bytes);
        for (const Candidate& other : weights[w]) {
          largest_step = std::max(largest_step, std::fabs(other.loss - weights[w].back().loss));
        }
      }
    }
    const uint64_t budget = 60 + RandomBits(seed, 999) % 200;
    double best = HUGE_VAL;
    for (size_t choice = 0; choice < 125; ++choice) {
      const Candidate &a = weights[0][choice % 5], &b = weights[1][choice / 5 % 5], &c = weights[2][choice / 25];
      if (a.bytes + b.bytes + c.bytes <= budget) best = std::min(best, a.loss + b.loss + c.loss);
    }
    const auto chosen = ChooseByBytes(weights, budget);
    ASSERT_EQ(chosen.ok(), best < HUGE_VAL) << seed;
    if (!chosen.ok()) continue;
    uint64_t bytes = 0;
    double loss = 0;
    for (size_t w = 0; w < 3; ++w) {
      bytes += weights[w][(*chosen)[w]].bytes;
      loss += weights[w][(*chosen)[w]].loss;
    }
    EXPECT_LE(bytes, budget);
    EXPECT_LE(loss, best + largest_step) << seed;
  }
}

}  // namespace
}  // namespace df
