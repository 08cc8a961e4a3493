// Work on the modules of an adapter, shared by the threads of a pool. Private to merge/.
#ifndef DELTAFOLD_MERGE_EACH_MODULE_H_
#define DELTAFOLD_MERGE_EACH_MODULE_H_

#include <algorithm>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "linalg/products.h"

namespace df {

// work(i), a Status, for each of n modules; the first failure by number, whatever the number of threads. `work` runs on
// several threads at once, on no more than BLAS has buffers for.
template <typename Work>
Status EachModule(ThreadPool& pool, size_t n, const Work& work) {
  std::vector<Status> failures(n);
  const size_t grain = std::max<size_t>(1, (n + linalg::kMaxCallers - 1) / linalg::kMaxCallers);
  pool.ParallelFor(n, grain, [&](size_t begin, size_t end, size_t) {
    for (size_t i = begin; i < end; ++i) failures[i] = work(i);
  });
  for (Status& failure : failures) {
    if (!failure.ok()) return std::move(failure);
  }
  return Status::Ok();
}

}  // namespace df

#endif  // DELTAFOLD_MERGE_EACH_MODULE_H_
