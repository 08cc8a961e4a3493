// Assertions on Status and Result that print the message when they fail.
#ifndef DELTAFOLD_TESTING_STATUS_MATCHERS_H_
#define DELTAFOLD_TESTING_STATUS_MATCHERS_H_

#include <gtest/gtest.h>

#include <utility>

#include "base/status.h"

namespace df::testing {

inline Status StatusOf(const Status& status) { return status; }
template <typename T>
Status StatusOf(const Result<T>& result) {
  return result.ok() ? Status::Ok() : result.status();
}

// The value, or a failed test and an abort of it by exception.
template <typename T>
T ValueOrDie(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return std::move(result).value();
}

}  // namespace df::testing

#define DF_EXPECT_OK(expr)                                                                       \
  do {                                                                                           \
    const ::df::Status df_got = ::df::testing::StatusOf(expr);                                   \
    EXPECT_TRUE(df_got.ok()) << ::df::StatusCodeName(df_got.code()) << ": " << df_got.message(); \
  } while (false)

#define DF_ASSERT_OK(expr)                                                                       \
  do {                                                                                           \
    const ::df::Status df_got = ::df::testing::StatusOf(expr);                                   \
    ASSERT_TRUE(df_got.ok()) << ::df::StatusCodeName(df_got.code()) << ": " << df_got.message(); \
  } while (false)

#endif  // DELTAFOLD_TESTING_STATUS_MATCHERS_H_
