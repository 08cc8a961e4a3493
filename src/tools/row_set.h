// Rows of the target table over the operations of interleaved rounds.
#ifndef DELTAFOLD_TOOLS_ROW_SET_H_
#define DELTAFOLD_TOOLS_ROW_SET_H_

#include <functional>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kernels/cost.h"
#include "tools/rounds.h"

namespace df::tools {

// The measurements of one row: one sample a round.
struct RowResult {
  std::string name;   // of the target
  std::string shape;  // "4096x4096"
  size_t n_threads = 0;
  std::vector<double> samples;
  // Of the operation that the row is about, by the median of its times; 0 where that says nothing.
  double bytes_per_second = 0, flops_per_second = 0;
  std::optional<double> read_share = {};  // median of: reading its bytes in the same round / its time
  bool from_cache = false;                // its bytes do not come from memory, whose speed is no bound then
  bool by_bf16_dots = false;  // its FLOPs are bf16 dot products: their peak is the bound, not that of multiply-add
  std::string missing;        // why there are no samples
};

// Names of rows to measure; empty = all.
using RowSelection = std::set<std::string>;
inline bool Wants(const RowSelection& selection, const std::string& name) {
  return selection.empty() || selection.contains(name);
}
// Whether `name` is what the pattern means, in which * stands for anything.
bool Matches(const std::string& pattern, const std::string& name);
// Whether any row of these patterns is wanted.
bool WantsAny(const RowSelection& selection, std::initializer_list<std::string> patterns);

// Thread-compatible.
class RowSet {
 public:
  using Operation = Rounds::Operation;
  // Seconds of an operation in the round at hand.
  using Times = std::function<double(Operation)>;

  RowSet(std::string shape, size_t n_threads) : shape_(std::move(shape)), n_threads_(n_threads), rounds_(n_threads) {}

  Operation Add(std::function<void()> run, std::function<void()> prepare = {}) {
    return rounds_.Add(std::move(run), std::move(prepare));
  }

  struct Row {
    std::string name;
    Operation subject = 0;               // what the row is about
    kernels::Cost cost = {};             // of the subject
    std::vector<Operation> others = {};  // what else `sample` looks at
    std::function<double(const Times&)> sample = {};
    size_t n_calls = 1;         // of the cost, in one run of the subject
    bool from_cache = false;    // as in RowResult
    bool by_bf16_dots = false;  // as there
    std::string missing = {};   // as there; nothing is run for the row then
  };
  void AddRow(Row row) { rows_.push_back(std::move(row)); }

  // What reads `bytes` of memory in sequence: read_share of all rows whose bytes come from there.
  void SetReading(Operation read, double bytes) { reading_ = {.operation = read, .bytes = bytes}; }

  // Runs what the selected rows need, `n_rounds` times, in turn.
  std::vector<RowResult> Measure(const RowSelection& selection, size_t n_rounds);

 private:
  struct Reading {
    Operation operation = 0;
    double bytes = 0;
  };
  bool IsBoundByReading(const Row& row) const { return reading_ && !row.from_cache && row.cost.bytes > 0; }
  RowResult ResultOf(const Row& row) const;

  std::string shape_;
  size_t n_threads_;
  Rounds rounds_;
  std::vector<Row> rows_;
  std::optional<Reading> reading_;
};

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_ROW_SET_H_
