// Is this delta sound, is it for this base, and how close does it come to the fine-tune?
#ifndef DELTAFOLD_CODEC_VERIFY_H_
#define DELTAFOLD_CODEC_VERIFY_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "codec/materialize.h"
#include "model/bind.h"

namespace df {

struct VerifiedWeight {
  std::string name;
  SlotKind kind = SlotKind::kMatrix;
  std::string code;  // CodeName
  Shape shape;
  uint64_t bytes = 0;
  std::optional<Quality> quality;  // against the fine-tune, when given
};

struct VerifyReport {
  std::string base_fingerprint;
  std::string content_digest;
  std::vector<VerifiedWeight> weights;
  // Over changed matrices; infinite where the delta changes one that the fine-tune did not.
  std::optional<double> mean_relative_frobenius;
};

// Checks fingerprint, structure (every part binds to a slot with the right shape), the digest of all bytes; with
// `fine_tune` (may be null) measures every weight against it. The only errors are those of BindVariant and
// DeltaDirectory::VerifyDigest, and kFailedPrecondition when the fine-tune has other shapes.
Result<VerifyReport> Verify(ThreadPool& pool, const Checkpoint& base, const std::string& directory,
                            const Checkpoint* fine_tune, const std::function<bool(const StreamProgress&)>& on_progress);

}  // namespace df

#endif  // DELTAFOLD_CODEC_VERIFY_H_
