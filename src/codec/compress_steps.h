// The steps of a compression as the delta writer's journal keeps them (format/step_journal.h): one a weight and pass,
// in an order that inputs and options fix. Each is either read back from what a stopped run noted, or done and noted.
#ifndef DELTAFOLD_CODEC_COMPRESS_STEPS_H_
#define DELTAFOLD_CODEC_COMPRESS_STEPS_H_

#include <string>
#include <vector>

#include "base/json.h"
#include "codec/choose.h"
#include "codec/compressor.h"
#include "format/checkpoint.h"
#include "format/delta_dir.h"

namespace df {

// What is made from what: a run goes on with the steps of an equal one only. Everything the bytes written depend on
// must be in it. `base_fingerprint` is that of the base. The only errors are those of FilesIdentity.
Result<Json> CompressTask(const Checkpoint& fine_tune, const std::string& base_fingerprint,
                          const CompressOptions& options);

class CompressSteps {
 public:
  explicit CompressSteps(DeltaWriter& writer) : writer_(writer) {}

  // The note of the next step of the stopped run; null when it had not come so far: the step is to be done and ended.
  const Json* NextOrNull() { return next_ < writer_.done_steps().size() ? &writer_.done_steps()[next_++] : nullptr; }
  Status End(const Json& note) { return writer_.EndStep(note); }

 private:
  DeltaWriter& writer_;
  size_t next_ = 0;
};

// A survey of `weight`, and back.
Json NoteOf(const std::string& weight, const std::vector<Candidate>& candidates);
Result<std::vector<Candidate>> ReadCandidates(const Json& note, const std::string& weight);

// What encoding told of a weight (code, bytes, quality), and back: the rest of `report` is there. kCorrupt, here and
// above, for a note of another weight or of another kind.
Json NoteOf(const WeightReport& report);
Status ReadEncoded(const Json& note, WeightReport& report);

}  // namespace df

#endif  // DELTAFOLD_CODEC_COMPRESS_STEPS_H_
