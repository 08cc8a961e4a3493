// DF_CHECK: ends the process with file, line and condition. Only for our own bugs; no input can reach one.
#ifndef DELTAFOLD_BASE_CHECK_H_
#define DELTAFOLD_BASE_CHECK_H_

namespace df::internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);
}  // namespace df::internal

#define DF_CHECK(condition)                                        \
  do {                                                             \
    if (!(condition)) [[unlikely]]                                 \
      ::df::internal::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)

#endif  // DELTAFOLD_BASE_CHECK_H_
