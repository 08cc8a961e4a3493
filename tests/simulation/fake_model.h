// A model without weights whose every answer tells whose it is. The keys and values of a position are a hash of the
// generation, of all tokens up to there and, where bits must not depend on company (`exact`), of the path on which each
// was computed; logits are a hash of those of all positions, read through the block table as attention would. So a
// block of somebody else's, one that was overwritten, and an answer replayed as if it were a prompt change what is
// drawn.
#ifndef DELTAFOLD_TESTS_SIMULATION_FAKE_MODEL_H_
#define DELTAFOLD_TESTS_SIMULATION_FAKE_MODEL_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/scheduler.h"
#include "engine/sequence.h"

namespace df::simulation {

uint64_t HashOf(std::string_view text);

// The tokens so far, as `digest` ("" = the base) sees them.
class Reading {
 public:
  explicit Reading(std::string_view digest) : state_(HashOf(digest)) {}

  uint64_t Add(int32_t token, bool is_decoded);  // returns the position's keys and values
  void AddCached(uint64_t kv);                   // a position whose keys and values are known
  uint64_t logits() const { return sum_; }

 private:
  uint64_t state_;
  uint64_t sum_ = 0;
  uint64_t n_ = 0;
};

// -1: no number.
int32_t Draw(uint64_t logits, size_t vocab, bool has_nan);

class FakeModel {
 public:
  FakeModel(size_t n_blocks, bool exact) : exact_(exact), cells_(n_blocks * kernels::kKvBlockTokens) {}

  struct Seen {
    uint64_t logits = 0;
    bool met_other_salt = false;
  };
  // The rows of `piece` with weights `digest`, written to the cache by the request's salt.
  Seen Step(const Piece& piece, std::string_view digest);

 private:
  struct Cell {
    uint64_t kv = 0, salt = 0;
  };
  const bool exact_;
  std::vector<Cell> cells_;
};

}  // namespace df::simulation

#endif  // DELTAFOLD_TESTS_SIMULATION_FAKE_MODEL_H_
