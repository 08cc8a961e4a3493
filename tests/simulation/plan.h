// What a seed stands for: the size of a world, its traffic, its operator and its faults.
#ifndef DELTAFOLD_TESTS_SIMULATION_PLAN_H_
#define DELTAFOLD_TESTS_SIMULATION_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/scheduler.h"
#include "store/residency_cache.h"

namespace df::simulation {

// A directory that can be registered.
struct Content {
  std::string digest;
  uint64_t bytes = 0;
  bool is_broken = false;  // no load of it ever goes through
  bool has_nan = false;    // some of its logits are no numbers
};

enum class Kind {
  kMixed,      // everything at once
  kSaturated,  // a full queue for seconds, weights always there: is everybody's turn kept?
  kTight,      // long answers in a tiny KV pool: who is preempted comes back
  kContended,  // others' weights always in use: does the store make room?
  kUneven,     // the same, of very different sizes: does the small one wait for the large, does the large one starve?
};

struct Plan {
  uint64_t seed = 0;
  Kind kind = Kind::kMixed;

  std::vector<std::string> names;
  bool is_steady = false;  // each name stands for a content of its own, for all of the time
  bool is_family = false;  // then: all others sit on the first
  std::vector<Content> contents;
  CacheOptions cache;

  SchedulerOptions scheduler;
  size_t n_blocks = 0;
  size_t context_tokens = 0;
  size_t max_queued_requests = 0;  // of one variant
  size_t vocab = 0;
  bool caches_prefixes = true, shares_answers = false;
  int64_t least_step_us = 0, longest_step_us = 0;

  size_t n_requests = 0;
  int64_t gap_us = 0;           // between requests, on average
  bool is_bursty = false;       // in clusters instead of one by one
  bool is_zipf = true;          // else all names are equally wanted
  uint64_t hot_per_mille = 0;   // of requests, for the first name in any case
  uint64_t base_per_mille = 0;  // of requests, for the base
  size_t longest_prompt = 0, longest_answer = 0;
  size_t n_beginnings = 1, n_salts = 1;
  uint64_t cancel_per_mille = 0, deadline_per_mille = 0;

  int64_t change_us = 0;       // between the operator's calls, on average; 0 = none after the start
  uint64_t pin_per_mille = 0;  // of calls that pin

  int64_t least_load_us = 0, longest_load_us = 0;
  uint64_t load_fault_per_mille = 0;
  size_t refused_load = 0;  // the n-th load finds no memory; 0 = none
  uint64_t step_fault_per_mille = 0;
  uint64_t jump_per_mille = 0;  // of the operator's calls, the clock's jumps
  bool stops_midway = false;    // the engine is shut down with requests under way
};

Plan MakePlan(uint64_t seed);

}  // namespace df::simulation

#endif  // DELTAFOLD_TESTS_SIMULATION_PLAN_H_
