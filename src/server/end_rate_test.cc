#include "server/end_rate.h"

#include <gtest/gtest.h>

namespace df::server {
namespace {

constexpr int64_t kSecond = 1'000'000;

TEST(EndRate, TellsWhenHalfOfWhatIsOpenWillHaveEnded) {
  EndRate rate;
  for (int i = 1; i <= 2000; ++i) rate.Count(i * kSecond / 10);  // ten a second, for 200 s
  const int64_t now_us = 200 * kSecond;
  EXPECT_EQ(rate.RetryAfterS(4, now_us), 1);
  EXPECT_EQ(rate.RetryAfterS(100, now_us), 5);
  EXPECT_EQ(rate.RetryAfterS(100'000, now_us), kLongestRetryAfterS);
}

TEST(EndRate, ForgetsWhatWasLongAgo) {
  EndRate rate;
  for (int i = 1; i <= 2000; ++i) rate.Count(i * kSecond / 10);
  EXPECT_GE(rate.RetryAfterS(100, 240 * kSecond), 15);  // two half-lives later
  EXPECT_LE(rate.RetryAfterS(100, 240 * kSecond), 22);
  EXPECT_EQ(rate.RetryAfterS(100, 100'000 * kSecond), kLongestRetryAfterS);
}

TEST(EndRate, AsksForTheLongestWaitWhereNothingHasEndedYet) {
  EXPECT_EQ(EndRate().RetryAfterS(3, kSecond), kLongestRetryAfterS);
  EXPECT_EQ(EndRate().RetryAfterS(0, kSecond), 1);
}

}  // namespace
}  // namespace df::server
