#include "base/read_ahead.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/quiet_thread.h"

namespace df {
namespace {

// Resident at most, beside what the caller works on: five milliseconds of a disk of 3 GB/s.
constexpr uint64_t kAheadBytes = uint64_t{16} << 20;
// Read at once: large for a disk, small for whoever waits.
constexpr size_t kPieceBytes = size_t{1} << 20;
// Of a larger part the caller waits for no more than this: it may be more than may be read ahead.
constexpr uint64_t kAwaitedBytes = uint64_t{4} << 20;
// Below this a thread takes longer to start than the reading.
constexpr uint64_t kLeastBytes = uint64_t{2} << 20;

uint64_t Sum(const std::vector<Bytes>& parts) {
  uint64_t sum = 0;
  for (const Bytes part : parts) sum += part.size();
  return sum;
}

// The pages that hold `part` are there when this returns, or cannot be had.
void ReadIn(Bytes part) {
#ifdef MADV_POPULATE_READ
  constexpr int kReadIn = MADV_POPULATE_READ;
#else
  constexpr int kReadIn = 22;
#endif
  const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(part.data());
  const uintptr_t begin = address & ~(page_bytes - 1);
  const size_t n_bytes = address + part.size() - begin;
  auto* pages = reinterpret_cast<void*>(begin);
  if (madvise(pages, n_bytes, kReadIn) != 0 && errno == EINVAL) {
    madvise(pages, n_bytes, MADV_WILLNEED);  // before Linux 5.14: the reading begins
  }
}

}  // namespace

ReadAhead::ReadAhead(std::vector<Bytes> parts) : parts_(std::move(parts)) {
  if (Sum(parts_) < kLeastBytes) return;
  try {
    thread_ = StartQuietThread([this] { Run(); });
  } catch (const std::system_error&) {  // none to be had
  }
}

ReadAhead::~ReadAhead() {
  if (!thread_.joinable()) return;
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ReadAhead::Next() {
  const uint64_t n_bytes = parts_[next_++].size();
  if (!thread_.joinable()) return;
  std::unique_lock lock(mutex_);
  passed_bytes_ = std::exchange(caller_bytes_, caller_bytes_ + n_bytes);
  changed_.notify_all();
  changed_.wait(lock, [&] { return read_bytes_ >= passed_bytes_ + std::min(n_bytes, kAwaitedBytes); });
}

ReadAhead::Turn ReadAhead::AwaitTurn(uint64_t end_bytes) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopping_ || end_bytes <= passed_bytes_ + kAheadBytes; });
  if (stopping_) return Turn::kStop;
  return end_bytes <= passed_bytes_ ? Turn::kSkip : Turn::kRead;
}

void ReadAhead::Run() {
  uint64_t done_bytes = 0;
  for (const Bytes part : parts_) {
    for (size_t at = 0; at < part.size(); at += kPieceBytes) {
      const Bytes piece = part.subspan(at, std::min(kPieceBytes, part.size() - at));
      done_bytes += piece.size();
      const Turn turn = AwaitTurn(done_bytes);
      if (turn == Turn::kStop) return;
      if (turn == Turn::kRead) ReadIn(piece);
      {
        const std::scoped_lock lock(mutex_);
        read_bytes_ = done_bytes;
      }
      changed_.notify_all();
    }
  }
}

}  // namespace df
