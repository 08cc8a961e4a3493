// The checkpoint that a merge writes: shards filled tensor by tensor in a directory that appears whole or not at all,
// and a journal (format/step_journal.h) by which a killed run is continued.
//
// A step is a note of tensors that are finished. Their bytes are on the disk before the note is written: what a note
// tells of need not be looked at again, and nothing is written twice. A thread behind waits for the disk and writes the
// notes, in order, while further tensors are merged.
#ifndef DELTAFOLD_MERGE_OUTPUT_H_
#define DELTAFOLD_MERGE_OUTPUT_H_

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/atomic_file.h"
#include "base/clock.h"
#include "base/work_behind.h"
#include "format/placed_safetensors.h"
#include "format/step_journal.h"
#include "merge/plan.h"

namespace df::merge {

struct OutputOptions {
  bool replace = false, resume = false;
  std::string note_name = {};            // as in MergerOptions
  std::vector<std::string> inputs = {};  // directories that must not be replaced
  Json task = Json::object();            // what is made from what: a run goes on with the steps of an equal one only
  // A step ends when so much was written since the last, or so much time has passed: what a kill costs at most.
  uint64_t step_bytes = uint64_t{1} << 30;
  double step_seconds = 5;
};

// Where a method's values go: narrowed to the tensor's dtype, and written in pieces that a file system takes well.
// Thread-safe but for Finish.
class TensorSink {
 public:
  TensorSink(const PlacedSafetensors& file, const OutputTensor& tensor) : file_(file), tensor_(tensor) {}
  void Take(size_t first, std::span<const float> values);
  // Writes the rest. kFailedPrecondition where a value overflows the dtype; kIo.
  Status Finish();

 private:
  // Values that follow one another, of whichever thread goes on there.
  struct Run {
    size_t first = 0, size = 0;  // elements, not written yet
    std::vector<uint8_t> bytes;
  };

  void Append(Run& run, std::span<const float> values);
  void Write(Run& run);

  const PlacedSafetensors& file_;
  const OutputTensor& tensor_;
  std::atomic<bool> fits_{true};
  std::mutex mutex_;
  std::unordered_map<size_t, std::unique_ptr<Run>> runs_;  // by the element that comes next
  Status status_;                                          // the first failure
};

class MergeOutput {
 public:
  // The only errors are kFailedPrecondition (the target exists or is being written; what a stopped run left is in the
  // way or of another task), kCorrupt (its journal) and kIo.
  static Result<std::unique_ptr<MergeOutput>> Create(const std::string& target, const MergePlan& plan,
                                                     OutputOptions options);

  const std::vector<Json>& done_notes() const { return done_notes_; }  // of a stopped run, in order
  const std::string& path() const { return directory_.path(); }        // where further files go

  std::unique_ptr<TensorSink> SinkFor(const OutputTensor& tensor) const;
  // `note` tells of a tensor that was written whole.
  Status EndTensor(const OutputTensor& tensor, Json note);
  // For what a second pass needs: bytes that are kept until Commit, in the order of these calls, and a note of them.
  Status Keep(Bytes data, Json note);
  Result<std::unique_ptr<MappedFile>> MapKept() const { return journal_.MapData(); }

  // What is done stays to be resumed when this is destroyed without Commit.
  void KeepForResume();
  // Puts all on the disk, removes the journal and gives the directory its name.
  Status Commit();

 private:
  MergeOutput(AtomicDirectory directory, StepJournal journal, const MergePlan& plan, OutputOptions options);
  static Result<std::unique_ptr<MergeOutput>> Continue(AtomicDirectory left, const MergePlan& plan,
                                                       OutputOptions options);
  Status OpenShards();
  Status EndStep();

  AtomicDirectory directory_;
  StepJournal journal_;
  const MergePlan& plan_;
  OutputOptions options_;
  SteadyClock clock_;
  std::vector<PlacedSafetensors> shards_;
  std::vector<Json> done_notes_;
  Json open_notes_ = Json::array();  // of tensors since the last step
  uint64_t open_bytes_ = 0, started_bytes_ = 0;
  int64_t step_began_us_ = 0;
  WorkBehind behind_;  // owns shards_ and journal_ while it has orders; the last member, as these use the others
};

}  // namespace df::merge

#endif  // DELTAFOLD_MERGE_OUTPUT_H_
