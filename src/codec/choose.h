// The choice of `auto`: one candidate a weight, by a bound on the error of each or on the bytes of all.
#ifndef DELTAFOLD_CODEC_CHOOSE_H_
#define DELTAFOLD_CODEC_CHOOSE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "codec/code.h"

namespace df {

// One code of one weight, as measured. `error` is what people bound, relative to the difference; `loss`, weighted by
// where the outputs go (compressor.cc), is what is summed over the weights and made small. survey.h fills both from the
// weights alone; a calibration on inputs may fill them from outputs, the choice is the same.
struct Candidate {
  Code code;
  uint64_t bytes = 0;
  double error = 0;
  double loss = 0;

  // Nothing that counts is lost, whatever the error.
  bool IsLossless() const { return loss == 0; }
};

// What may be stored.
struct Budget {
  enum class Unit { kBytes, kBitsPerWeight, kShareOfModel };
  Unit unit = Unit::kBitsPerWeight;
  double value = 1.35;

  // For a model of so many weights and bytes.
  uint64_t Bytes(uint64_t n_weights, uint64_t full_bytes) const;
};

// "24M" (K, M, G: powers of 1000; Ki, Mi, Gi: of 1024; none: bytes), "1.35bpw", "12%". The only error is
// kInvalidArgument.
Result<Budget> ParseBudget(std::string_view text);
std::string BudgetText(const Budget& budget);

// Of every list, the place of the candidate of fewest bytes whose error (or loss) is no more than `max_error` (or 0);
// of equal bytes the smaller error. kFailedPrecondition naming the first list, by its place in `names`, that has none.
Result<std::vector<size_t>> ChooseByError(const std::vector<std::vector<Candidate>>& weights,
                                          const std::vector<std::string>& names, double max_error);

// The next place of one such list after `place` was found to have another error than measured: the fewest bytes among
// those that take more and keep it, or none.
std::optional<size_t> NextByError(std::span<const Candidate> candidates, size_t place, double max_error);

// Of every list the place of one candidate, the sum of losses small and that of bytes at most `bytes`: from the
// smallest of each, always the step that saves the most loss a byte (along the lower convex hull), as long as it fits.
// At most one step's saving worse than the best choice there is. kFailedPrecondition, saying how many bytes it takes at
// least.
Result<std::vector<size_t>> ChooseByBytes(const std::vector<std::vector<Candidate>>& weights, uint64_t bytes);

}  // namespace df

#endif  // DELTAFOLD_CODEC_CHOOSE_H_
