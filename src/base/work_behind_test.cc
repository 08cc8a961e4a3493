#include "base/work_behind.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <vector>

namespace df {
namespace {

TEST(WorkBehind, DoesAllInOrder) {
  std::vector<int> done;
  WorkBehind behind(10);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(behind
                    .Do(static_cast<uint64_t>(i % 7),
                        [&done, i] {
                          done.push_back(i);
                          return Status::Ok();
                        })
                    .ok());
  }
  ASSERT_TRUE(behind.Finish().ok());
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(done, expected);
}

TEST(WorkBehind, HoldsNoMoreThanItMayOrOneOrder) {
  std::atomic<int64_t> held = 0, most = 0;
  WorkBehind behind(100);
  for (int64_t i = 0; i < 200; ++i) {
    const int64_t bytes = i % 10 == 9 ? 150 : 30;
    held += bytes;  // as the one that is being ordered
    ASSERT_TRUE(behind
                    .Do(static_cast<uint64_t>(bytes),
                        [&, bytes] {
                          most = std::max(most.load(), held.load());
                          held -= bytes;
                          return Status::Ok();
                        })
                    .ok());
  }
  ASSERT_TRUE(behind.Finish().ok());
  EXPECT_LE(most.load(), 150 + 150);  // those held, and the next
}

TEST(WorkBehind, GivesTheFirstFailureBackAndDoesNothingAfterIt) {
  std::atomic<int> done = 0;
  WorkBehind behind(1);
  Status last = Status::Ok();
  for (int i = 0; i < 20; ++i) {
    last = behind.Do(1, [&done, i] {
      ++done;
      return i < 5 ? Status::Ok() : Cancelled("number " + std::to_string(i));
    });
  }
  EXPECT_EQ(last.message(), "number 5");
  EXPECT_EQ(behind.Finish().message(), "number 5");
  EXPECT_EQ(done.load(), 6);
}

TEST(WorkBehind, DoesWhatWasOrderedWhenItIsDestroyed) {
  std::atomic<int> done = 0;
  {
    WorkBehind behind(1000);
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(behind
                      .Do(1,
                          [&done] {
                            ++done;
                            return Status::Ok();
                          })
                      .ok());
    }
  }
  EXPECT_EQ(done.load(), 20);
}

}  // namespace
}  // namespace df
