// One seed's world from its beginning to its end.
#ifndef DELTAFOLD_TESTS_SIMULATION_WORLD_H_
#define DELTAFOLD_TESTS_SIMULATION_WORLD_H_

#include <cstdint>
#include <string>

#include "engine.h"
#include "environment.h"
#include "operator.h"
#include "plan.h"
#include "store.h"
#include "traffic.h"

namespace df::simulation {

struct Outcome {
  std::string invariant;  // the first that broke; "" = none
  std::string what;
  uint64_t digest = 0;  // of all that happened
  uint64_t n_events = 0, n_ended = 0, n_answered = 0;
  uint64_t n_loads = 0, n_failures = 0, n_evictions = 0, n_preemptions = 0, n_prefix_hits = 0;
  int64_t virtual_us = 0;
};

class World {
 public:
  World(const Plan& plan, bool prints);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Outcome Run();

 private:
  bool IsDrained() const;
  void RunTraffic();
  void RunToTheEnd();
  void Next();
  Outcome Report() const;

  Environment environment_;
  Store store_;
  Engine engine_;
  Operator operator_;
  Traffic traffic_;
  uint64_t n_events_ = 0;
};

// Everything is drawn from `seed`; the same seed gives the same outcome on every machine.
Outcome Simulate(uint64_t seed, bool prints);

}  // namespace df::simulation

#endif  // DELTAFOLD_TESTS_SIMULATION_WORLD_H_
