// Interleaved measurement: every round times each operation once, in turn, and a row compares times of the same round.
// What slows the machine for a while slows both sides of a comparison.
#ifndef DELTAFOLD_TOOLS_ROUNDS_H_
#define DELTAFOLD_TOOLS_ROUNDS_H_

#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

namespace df::tools {

// Thread-compatible.
class Rounds {
 public:
  using Operation = size_t;

  explicit Rounds(size_t n_threads) : n_threads_(n_threads) {}

  // `run` is what is timed; `prepare`, if any, runs before it.
  Operation Add(std::function<void()> run, std::function<void()> prepare = {});

  // Runs `n_rounds` rounds of the operations in `used` after one that does not count. Times of an earlier Run are
  // forgotten.
  void Run(size_t n_rounds, const std::vector<bool>& used);

  size_t n_operations() const { return entries_.size(); }
  size_t n_rounds() const { return n_rounds_; }
  // Seconds of CPU time (cpu_timer.h) of an operation that was used.
  double Seconds(Operation operation, size_t round) const { return entries_[operation].seconds[round]; }

 private:
  struct Entry {
    std::function<void()> run, prepare;
    std::vector<double> seconds;
  };
  size_t n_threads_;
  size_t n_rounds_ = 0;
  std::vector<Entry> entries_;
};

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_ROUNDS_H_
