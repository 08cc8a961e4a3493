// The real scheduler, KV blocks, prefix index, inbox and event queues in the loop of engine/engine.cc, without its
// thread: a step takes virtual time, its model is made up.
#ifndef DELTAFOLD_TESTS_SIMULATION_ENGINE_H_
#define DELTAFOLD_TESTS_SIMULATION_ENGINE_H_

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "draws.h"
#include "engine/inbox.h"
#include "engine/scheduler.h"
#include "environment.h"
#include "fake_model.h"
#include "store.h"

namespace df::simulation {

class Engine {
 public:
  Engine(Environment& environment, const Store& store);

  Status Submit(GenerationRequest request);
  void Cancel(const std::string& id);
  void Wake();
  // Ends everybody, as the destructor of the real one.
  void Stop();
  void Heal() { is_healthy_ = true; }  // no more faults of steps

  // For the checks. A sequence that is in the engine:
  struct Live {
    const Sequence* sequence = nullptr;
    std::string digest;          // at Submit
    size_t n_before = 0;         // of its variant, waiting, when it came
    uint64_t n_preemptions = 0;  // of all, until then
    int64_t since_us = 0;        // awake time
    int64_t cold_us = -1;        // since when it has been seen waiting for nothing but its weights; -1 = not so
  };
  const std::map<uint64_t, Live>& live() const { return live_; }  // by arrival
  const KvBlocks& blocks() const { return blocks_; }
  const Scheduler& scheduler() const { return scheduler_; }
  bool IsIdle() const { return live_.empty() && inbox_.n_waiting() == 0; }

 private:
  using Sequences = std::vector<std::unique_ptr<Sequence>>;

  void Nudge();
  void Turn();
  void Accept(News& news);
  void SharePrefix(Sequence& sequence) const;
  void Plan();
  void EndStep();
  void RunModel(std::vector<std::pair<Sequence*, int32_t>>& drawn);
  int32_t RunPiece(const Piece& piece);
  void Deliver(Sequence& sequence, int32_t token);
  void End(Sequences sequences, const Status& why);

  // Checks that belong to a moment.
  void CheckNews(const News& news) const;
  void CheckPlan(std::span<const Piece> pieces) const;
  void CheckClaims() const;
  void CheckAdmissions();
  void CheckOverdue();
  void CheckWokenInTime() const;
  void CheckAsks();
  size_t WaitingFor(const std::string& digest) const;
  int64_t AgingBoundUs(const Live& live) const;

  Environment& environment_;
  const Store& store_;
  Inbox inbox_;
  FakeModel model_;
  KvBlocks blocks_;
  Scheduler scheduler_;
  Draws steps_;
  std::vector<Piece> pieces_;  // of the step under way, by arrival
  uint64_t n_accepted_ = 0, n_turns_scheduled_ = 0;
  bool is_stepping_ = false, is_stopped_ = false, is_healthy_ = false, is_nudged_ = false;

  std::map<uint64_t, Live> live_;
  std::set<uint64_t> unadmitted_;            // arrivals without a ticket
  std::map<std::string, size_t> submitted_;  // by digest: not accepted yet
  std::set<CacheId> left_wanted_;            // whoever waited for them was told to try again later
  int64_t turn_us_ = 0, awake_us_ = 0;  // of the last turn, the latter by a clock that stands while the machine sleeps
  int64_t longest_step_us_ = 0;
  size_t most_lines_ = 0, largest_cost_ = 1;
};

}  // namespace df::simulation

#endif  // DELTAFOLD_TESTS_SIMULATION_ENGINE_H_
