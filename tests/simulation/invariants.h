// What must hold after every event, and at the end. docs/simulation.md says where each of I1 to I12 is checked: those
// of a state here, those of a moment where it happens (store_checks.cc, engine_checks.cc, traffic.cc, operator.cc).
#ifndef DELTAFOLD_TESTS_SIMULATION_INVARIANTS_H_
#define DELTAFOLD_TESTS_SIMULATION_INVARIANTS_H_

#include "engine.h"
#include "environment.h"
#include "operator.h"
#include "store.h"

namespace df::simulation {

struct View {
  Environment& environment;
  const Store& store;
  const Engine& engine;
  const Operator& names;
};

// After every event.
void CheckInvariants(const View& view);
// Traffic is over and everybody was answered.
void CheckDrained(const View& view);
// No name is left either.
void CheckNothingHeld(const View& view);

}  // namespace df::simulation

#endif  // DELTAFOLD_TESTS_SIMULATION_INVARIANTS_H_
