#include "base/cpu_quota.h"

#include <gtest/gtest.h>

namespace df {
namespace {

TEST(CpuQuota, LeavesWholeCpusAndNeverNone) {
  EXPECT_EQ(CpusWithinQuota("50000 100000\n", 64), 1u) << "half a CPU";
  EXPECT_EQ(CpusWithinQuota("1000 1000000\n", 64), 1u);
  EXPECT_EQ(CpusWithinQuota("250000 100000\n", 64), 2u);
  EXPECT_EQ(CpusWithinQuota("6400000 100000\n", 8), 8u) << "more than there are";
  EXPECT_EQ(CpusWithinQuota("1e300 1\n", 8), 8u);
}

TEST(CpuQuota, LimitsNothingWhereNoneIsSet) {
  for (const char* text : {"max 100000\n", "", "max", "50000", "50000 0", "-1 100000", "0 100000", "nan 1", "1 nan"}) {
    EXPECT_EQ(CpusWithinQuota(text, 64), 64u) << text;
  }
}

}  // namespace
}  // namespace df
