// A loop whose threads help each other out: for long ones beside which other threads want the CPUs.
#ifndef DELTAFOLD_BASE_EVEN_SHARES_H_
#define DELTAFOLD_BASE_EVEN_SHARES_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <vector>

#include "base/thread_pool.h"

namespace df {

// Calls body(begin, end, thread) for pieces of [0, n), each of at most `piece` and in no fixed order: as ParallelFor,
// but a thread that is through with its part goes on with pieces of the others'. `thread` < n_threads() numbers a
// caller of body, who makes one call at a time. What is done for an item must not depend on the pieces. One thread, or
// n <= piece: one call.
template <typename Body>
void ParallelForEvenly(ThreadPool& pool, size_t n, size_t piece, const Body& body) {
  if (pool.n_threads() == 1 || n <= piece) {
    if (n > 0) body(0, n, 0);
    return;
  }
  struct alignas(64) Share {
    std::atomic<size_t> next{0};
    size_t end = 0;
  };
  std::vector<Share> shares(pool.n_threads());
  const size_t n_pieces = (n + piece - 1) / piece;
  for (size_t i = 0; i < shares.size(); ++i) {
    shares[i].next.store(std::min(n, n_pieces * i / shares.size() * piece), std::memory_order_relaxed);
    shares[i].end = std::min(n, n_pieces * (i + 1) / shares.size() * piece);
  }
  pool.ParallelFor(shares.size(), 1, [&](size_t, size_t, size_t thread) {
    for (size_t k = 0; k < shares.size(); ++k) {
      Share& share = shares[(thread + k) % shares.size()];
      // relaxed: pieces are disjoint, and the end of ParallelFor publishes what was done.
      for (size_t at = 0; (at = share.next.fetch_add(piece, std::memory_order_relaxed)) < share.end;) {
        body(at, std::min(share.end, at + piece), thread);
      }
    }
  });
}

}  // namespace df

#endif  // DELTAFOLD_BASE_EVEN_SHARES_H_
