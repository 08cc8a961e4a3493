#include "kernels/target.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "hwy/highway.h"
#include "kernels/limits.h"

namespace df::kernels {
namespace {

TEST(Target, ListsTheBestFirstAndScalarLast) {
  const std::vector<std::string> names = AvailableTargets();
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names.back(), "scalar");
  ASSERT_TRUE(SetTarget("auto").ok());
  EXPECT_EQ(CurrentTarget(), names.front());
}

TEST(Target, ForcesEveryAvailableTarget) {
  for (const std::string& name : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(name).ok()) << name;
    EXPECT_EQ(CurrentTarget(), name);
    EXPECT_EQ(IsScalarTarget(), name == "scalar");
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

TEST(Target, RefusesAnUnknownNameAndListsWhatThereIs) {
  const Status status = SetTarget("avx9000");
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("avx9000"), std::string::npos);
  EXPECT_NE(status.message().find("scalar"), std::string::npos);
}

TEST(Target, ReadsTheEnvironment) {
  setenv("DELTAFOLD_TARGET", "scalar", 1);
  ASSERT_TRUE(SetTargetFromEnvironment().ok());
  EXPECT_EQ(CurrentTarget(), "scalar");
  setenv("DELTAFOLD_TARGET", "nonsense", 1);
  EXPECT_NE(SetTargetFromEnvironment().message().find("DELTAFOLD_TARGET"), std::string::npos);
  unsetenv("DELTAFOLD_TARGET");
  ASSERT_TRUE(SetTargetFromEnvironment().ok());
  EXPECT_EQ(CurrentTarget(), AvailableTargets().front());
}

// Where a limit is the first thing that a process asks for, the environment must have been read before.
TEST(Target, EnvironmentRulesTheFirstCallWhateverItIs) {
  const std::vector<std::string> names = AvailableTargets();
  if (names.size() < 3) GTEST_SKIP() << "one vector target only";
  const std::string& least = names[names.size() - 2];
  setenv("DELTAFOLD_TARGET", least.c_str(), 1);
  KernelContext context(1);
  Buffer<uint8_t> memory(4096);
  hwy::GetChosenTarget().DeInit();
  ReadMemory(context, memory.span());
  EXPECT_EQ(CurrentTarget(), least);
  hwy::GetChosenTarget().DeInit();
  MultiplyAdd(context, 1);
  EXPECT_EQ(CurrentTarget(), least);
  unsetenv("DELTAFOLD_TARGET");
  ASSERT_TRUE(SetTargetFromEnvironment().ok());
}

}  // namespace
}  // namespace df::kernels
