// Work in steps that outlives its process. Two files in a directory:
//
//   delta_spool    the bytes that the steps appended, one after another, behind as much room as was asked for
//   delta_journal  lines "DIGEST JSON", the digest that of the JSON as text: first {"format": "deltafold steps 2",
//                  "task": T, "first_byte": F}, then for every step {"end": E, "data": D, "note": N}: the spool's
//                  length after it, the digest of what it appended, and what else is to be remembered
//
// A step is done when its line stands whole and the spool has the bytes its digest says. So a kill at any moment, even
// of the whole machine, costs the unfinished step and those whose bytes never got to the disk, and nothing is fsynced
// on the way.
#ifndef DELTAFOLD_FORMAT_STEP_JOURNAL_H_
#define DELTAFOLD_FORMAT_STEP_JOURNAL_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/append_file.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "format/digest.h"

namespace df {

// Thread-compatible.
class StepJournal {
 public:
  static constexpr char kFileName[] = "delta_journal";
  static constexpr char kSpoolName[] = "delta_spool";

  // `task` says what is being made from what. With `first_byte` the spool has that much room before the data, for a
  // header that is known at the end: the spool is then what the data are wanted in (Publish). The only errors are kIo.
  static Result<StepJournal> Create(const std::string& directory, const Json& task, uint64_t first_byte = 0);
  // Reads back the steps that were done and cuts off the rest. kCorrupt where not even the task can be read; kIo.
  static Result<StepJournal> Reopen(const std::string& directory);

  const Json& task() const { return task_; }
  const std::vector<Json>& notes() const { return notes_; }  // of the steps read back

  Status Append(Bytes data);
  uint64_t first_byte() const { return first_byte_; }
  uint64_t data_bytes() const { return spool_.size_bytes(); }  // with the room before them
  // Makes a step of what was appended since the last.
  Status EndStep(const Json& note);
  bool has_steps() const { return has_steps_; }

  // All data that was appended.
  Result<std::unique_ptr<MappedFile>> MapData() const { return MappedFile::Open(spool_.path()); }
  // Removes both files.
  Status Remove();
  // Writes `header`, which fills the room before the data, and gives the spool the name `path`; the journal is removed.
  Status Publish(std::string_view header, const std::string& path);

 private:
  StepJournal(AppendFile journal, AppendFile spool, Json task, uint64_t first_byte)
      : journal_(std::move(journal)), spool_(std::move(spool)), task_(std::move(task)), first_byte_(first_byte) {}

  AppendFile journal_, spool_;
  Json task_;
  uint64_t first_byte_ = 0;
  std::vector<Json> notes_;
  Digest data_digest_;  // of what was appended since the last step
  bool has_steps_ = false;
};

// Where two tasks first differ: "codec.code was \"row\", is \"rank1\""; empty where they are equal.
std::string FirstDifference(const Json& was, const Json& is);

}  // namespace df

#endif  // DELTAFOLD_FORMAT_STEP_JOURNAL_H_
