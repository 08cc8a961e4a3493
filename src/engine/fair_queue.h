// Waiting sequences: a line per generation (the base is one), in order of arrival, and whose turn it is.
//
// Deficit round robin (Shreedhar and Varghese, SIGCOMM 1995) over the lines: each round gives a line `quantum` tokens;
// its head enters once they cover the head's cost, prompt plus expected answer. So a line's share does not depend on
// how many wait in the others. Rounds are not walked through: a line's next round is computed, and the lines stand in
// that order, so that a turn takes time logarithmic in the number of lines.
//
// A line whose weights are not there (cold) is not in the round and holds nobody up. Whenever there may be news it asks
// again; once granted, the lease is kept for its head (a claim) and the line comes back with its turn: the head may
// enter on credit, once, and the line pays in the rounds that follow.
#ifndef DELTAFOLD_ENGINE_FAIR_QUEUE_H_
#define DELTAFOLD_ENGINE_FAIR_QUEUE_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/sequence.h"

namespace df {

// A sequence whose weights cannot be had; `cause` is kUnavailable.
struct FailedSequence {
  std::unique_ptr<Sequence> sequence;
  Status cause;
};
// What such a sequence is told; and one that has waited for its weights for as long as it may.
inline constexpr std::string_view kCannotBeServed = "cannot be served now: ";
Status WeightsUnavailable(const Sequence& sequence, const Status& failure);
Status WeightsLate(const Sequence& sequence, int64_t waited_us);

// What entering costs a line: prompt tokens and those that an answer may be expected to have.
inline constexpr size_t kExpectedAnswerTokens = 256;
size_t CostTokens(const Sequence& sequence);

// Engine thread only.
class FairQueue {
 public:
  explicit FairQueue(size_t quantum_tokens) : quantum_(static_cast<int64_t>(quantum_tokens)) {}

  // Without memory for it nothing is changed.
  void Push(std::unique_ptr<Sequence> sequence);
  std::unique_ptr<Sequence> Remove(const Sequence& sequence);
  std::vector<std::unique_ptr<Sequence>> RemoveAll();
  // Destroys all; takes no memory.
  void Clear();

  // Takes out the head whose turn it is, with the lease of its weights; null when nobody waits whose weights are there.
  // Lines whose weights cannot be had go to `failed`.
  std::unique_ptr<Sequence> Pop(int64_t now_us, std::vector<FailedSequence>& failed);
  // Cold lines ask for their weights.
  void AskForCold(int64_t now_us, std::vector<FailedSequence>& failed);
  // Gives claims back: others, older, need the room.
  void DropClaims(int64_t now_us);
  // Takes out whoever has waited for his weights for `longest_us`. His line's ask stands: the load goes on.
  void FailOverdue(int64_t now_us, int64_t longest_us, std::vector<FailedSequence>& failed);
  // When that is to be done next; INT64_MAX: nobody waits for weights.
  int64_t NextOverdueUs(int64_t longest_us) const;

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  bool HasCold() const { return !cold_.empty(); }

 private:
  using Turn = std::pair<uint64_t, uint64_t>;  // round, order
  struct Line {
    std::map<uint64_t, std::unique_ptr<Sequence>> waiting;  // by arrival
    GenerationRef generation;                               // null: the base
    ResidencyLease claim;
    bool is_cold = false;
    int64_t cold_since_us = 0;
    uint64_t order = 0;   // of the lines' beginnings; within a round
    uint64_t round = 0;   // the deficit is that of this round
    int64_t deficit = 0;  // negative: in debt
    Turn turn = {0, 0};   // in turns_, unless cold
    const Sequence& head() const { return *waiting.begin()->second; }
    // Since when the head waits for weights, of a cold line.
    int64_t waits_since_us() const { return std::max(cold_since_us, head().submitted_us); }
  };

  void Join(Line& line);
  void Leave(Line& line);
  void TurnCold(Line& line, int64_t now_us);
  void Fail(Line& line, const Status& failure, std::vector<FailedSequence>& failed);
  std::unique_ptr<Sequence> TakeOut(Line& line, uint64_t arrival);
  void PassRounds(Line& line, uint64_t round);
  // The line's lease for its head, or none: it is cold then, or has failed and is gone.
  bool Ask(Line& line, int64_t now_us, std::vector<FailedSequence>& failed);

  const int64_t quantum_;
  std::unordered_map<const Generation*, Line> lines_;  // none of them empty
  std::map<Turn, Line*> turns_;
  std::map<uint64_t, Line*> cold_;  // by order
  uint64_t round_ = 0;              // that of the last turn
  uint64_t n_lines_ = 0;            // ever begun
  size_t n_claims_ = 0;
  size_t size_ = 0;
};

}  // namespace df

#endif  // DELTAFOLD_ENGINE_FAIR_QUEUE_H_
