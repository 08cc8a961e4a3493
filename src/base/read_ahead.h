// Reads parts of mapped files in, in order, ahead of somebody who goes through them, on a thread of its own: the disk
// works while he computes, and he takes no page faults.
#ifndef DELTAFOLD_BASE_READ_AHEAD_H_
#define DELTAFOLD_BASE_READ_AHEAD_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "base/bytes.h"

namespace df {

// Called from one thread.
class ReadAhead {
 public:
  // `parts` lie in mapped files, which must outlive this; one that cannot be read is left to whoever touches it.
  // Without a thread where so little is to be read, or none is to be had, that the disk's own read-ahead has to do.
  explicit ReadAhead(std::vector<Bytes> parts);
  ~ReadAhead();  // gives up what is not read yet
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // The caller is through with all parts before the next one and about to go through that: waits until its beginning is
  // there, so that he does not overtake.
  void Next();

 private:
  enum class Turn { kRead, kSkip, kStop };

  void Run();
  // Waits until the reader may read up to `end_bytes` of all parts, or need not, since the caller is further.
  Turn AwaitTurn(uint64_t end_bytes);

  const std::vector<Bytes> parts_;
  size_t next_ = 0;  // part that the caller comes to

  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t passed_bytes_ = 0;  // of all parts: those before the caller's
  uint64_t caller_bytes_ = 0;  // and with his
  uint64_t read_bytes_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace df

#endif  // DELTAFOLD_BASE_READ_AHEAD_H_
