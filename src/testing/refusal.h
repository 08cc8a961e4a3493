// Assertion on a refusal: its code, and that the message names the object and the numbers.
#ifndef DELTAFOLD_TESTING_REFUSAL_H_
#define DELTAFOLD_TESTING_REFUSAL_H_

#include <gtest/gtest.h>

#include <initializer_list>
#include <string_view>

#include "testing/status_matchers.h"

namespace df::testing {

inline void ExpectRefusal(const Status& status, StatusCode code, std::initializer_list<std::string_view> words) {
  EXPECT_EQ(StatusCodeName(status.code()), StatusCodeName(code)) << status.message();
  for (const std::string_view word : words) {
    EXPECT_NE(status.message().find(word), std::string::npos) << "no \"" << word << "\" in: " << status.message();
  }
}
template <typename T>
void ExpectRefusal(const Result<T>& result, StatusCode code, std::initializer_list<std::string_view> words) {
  ExpectRefusal(StatusOf(result), code, words);
}

}  // namespace df::testing

#endif  // DELTAFOLD_TESTING_REFUSAL_H_
