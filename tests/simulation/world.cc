#include "world.h"

#include <memory>

#include "invariants.h"

namespace df::simulation {
namespace {

// Far beyond what any seed needs: a world that comes here goes round in circles.
constexpr uint64_t kMostEvents = 400'000;
// From the last name's end until nothing is left: loads under way, then a look of the dropper's, all slowed tenfold.
constexpr int64_t kLongestEndUs = 10'000'000;

}  // namespace

World::World(const Plan& plan, bool prints)
    : environment_(plan, prints),
      store_(environment_, [this] { engine_.Wake(); }),
      engine_(environment_, store_),
      operator_(environment_, store_),
      traffic_(environment_, operator_, store_, engine_) {}

// What is due holds generations and weights: it goes while the store is there.
World::~World() { environment_.timeline.Clear(); }

void World::Next() {
  ++n_events_;
  environment_.timeline.RunNext();
  traffic_.ReadEvents();
  CheckInvariants({.environment = environment_, .store = store_, .engine = engine_, .names = operator_});
}

bool World::IsDrained() const { return traffic_.AllSent() && engine_.IsIdle(); }

void World::RunTraffic() {
  operator_.Start();
  traffic_.Start();
  bool was_sent = false;
  Draws draws(environment_.plan.seed, Stream::kPlan);
  const uint64_t stop_event = environment_.plan.stops_midway ? draws.Between<uint64_t>(1, 1000) : 0;
  while (environment_.verdict.ok() && !IsDrained()) {
    if (n_events_ == stop_event && stop_event > 0) {
      environment_.trace.Note("engine stops", "");
      traffic_.Stop();
      traffic_.ReadEvents();
    }
    if (traffic_.AllSent() && !was_sent) {
      was_sent = true;
      store_.Heal();
      engine_.Heal();
    }
    if (n_events_ > kMostEvents) {
      environment_.verdict.Break("I12", std::to_string(engine_.live().size()) + " requests never end");
    } else if (!IsDrained()) {
      Next();
    }
  }
}

// Nobody asks any more, no name stands: all memory comes back.
void World::RunToTheEnd() {
  operator_.Stop();
  CheckDrained({.environment = environment_, .store = store_, .engine = engine_, .names = operator_});
  traffic_.CheckAllEnded();
  environment_.trace.Note("traffic is over", "");
  operator_.RetireAll();
  const int64_t end_us = environment_.now_us() + kLongestEndUs;
  while (environment_.verdict.ok() && !store_.cache().Ids().empty()) {
    Next();
    if (environment_.now_us() > end_us) {
      environment_.verdict.Break("I4", std::to_string(store_.cache().Ids().size()) + " generations are never dropped");
    }
  }
  CheckNothingHeld({.environment = environment_, .store = store_, .engine = engine_, .names = operator_});
}

Outcome World::Report() const {
  const CacheStats& cache = store_.cache().stats();
  Outcome outcome = {.invariant = environment_.verdict.invariant(),
                     .what = environment_.verdict.what(),
                     .digest = environment_.trace.digest(),
                     .n_events = n_events_,
                     .n_ended = traffic_.n_ended(),
                     .n_answered = traffic_.n_answered(),
                     .n_loads = cache.loads,
                     .n_failures = cache.load_failures,
                     .n_preemptions = engine_.scheduler().stats().n_preemptions,
                     .n_prefix_hits = engine_.scheduler().stats().prefix_hits,
                     .virtual_us = environment_.now_us()};
  for (const auto& [cause, n] : cache.evictions) outcome.n_evictions += n;
  return outcome;
}

Outcome World::Run() {
  RunTraffic();
  if (environment_.verdict.ok()) RunToTheEnd();
  store_.StopTicking();
  return Report();
}

Outcome Simulate(uint64_t seed, bool prints) {
  const Plan plan = MakePlan(seed);
  auto world = std::make_unique<World>(plan, prints);
  Outcome outcome = world->Run();
  // Where an invariant is broken nothing can be relied on, not even the way out.
  if (!outcome.invariant.empty()) static_cast<void>(world.release());
  return outcome;
}

}  // namespace df::simulation
