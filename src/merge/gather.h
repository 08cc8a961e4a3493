// The views of one tensor in all sources, in one shape: what a method is given (method.h).
#ifndef DELTAFOLD_MERGE_GATHER_H_
#define DELTAFOLD_MERGE_GATHER_H_

#include <vector>

#include "merge/plan.h"

namespace df::merge {

// Holds the memory of one tensor at a time. All arguments must outlive it.
class Gatherer {
 public:
  Gatherer(ThreadPool& pool, const MergePlan& plan, const MergeSources& sources)
      : pool_(pool), plan_(plan), sources_(sources) {}

  // Valid until the next call. Errors: of ReadTensor.
  Result<TensorGroup> Gather(const OutputTensor& tensor);
  // Gives back the mapped pages of it, and memory of a vocabulary's size.
  void Drop(const OutputTensor& tensor);
  // Lets the disk read those of `tensor` in.
  void Announce(const OutputTensor& tensor) const;

 private:
  std::vector<const MergeSource*> Needed() const;

  ThreadPool& pool_;
  const MergePlan& plan_;
  const MergeSources& sources_;
  std::vector<Buffer<float>> made_;
  std::vector<Buffer<uint8_t>> matched_;
};

}  // namespace df::merge

#endif  // DELTAFOLD_MERGE_GATHER_H_
