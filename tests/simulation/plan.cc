#include "plan.h"

#include <algorithm>

#include "draws.h"

namespace df::simulation {
namespace {

constexpr uint64_t kBytes = 1000;  // of the smallest content

void PlanContents(Draws& draws, Plan& plan) {
  const size_t n_names = draws.Between<size_t>(1, 8);
  const size_t n_contents = draws.Between<size_t>(1, 7);
  for (size_t i = 0; i < n_names; ++i) plan.names.push_back("name-" + std::to_string(i));
  for (size_t i = 0; i < n_contents; ++i) {
    plan.contents.push_back({.digest = "c" + std::to_string(i),
                             .bytes = kBytes + draws.Below(kBytes),
                             .is_broken = draws.PerMille(60),
                             .has_nan = draws.PerMille(60)});
  }
}

// From one and a half of the largest up to all, their children included.
uint64_t DrawBudget(Draws& draws, const Plan& plan) {
  uint64_t largest = 0, all = 0;
  for (const Content& content : plan.contents) {
    largest = std::max(largest, content.bytes);
    all += content.bytes;
  }
  const uint64_t least = largest * 3 / 2;
  const uint64_t most = std::max(least, 2 * all);
  return draws.PerMille(300) ? draws.Between(least, std::min(most, 3 * largest)) : draws.Between(least, most);
}

void PlanStore(Draws& draws, Plan& plan) {
  plan.cache = {.budget_bytes = DrawBudget(draws, plan),
                .max_loads = draws.Between<size_t>(1, 3),
                .auto_pin = draws.Between<size_t>(0, 3),
                .idle_timeout_us = draws.PerMille(300) ? 0 : draws.Between<int64_t>(100'000, 5'000'000),
                .half_life_us = draws.Between<int64_t>(100'000, 10'000'000),
                .first_backoff_us = draws.Between<int64_t>(1'000, 500'000),
                .longest_backoff_us = draws.Between<int64_t>(500'000, 2'000'000),
                .patience_us = draws.Between<int64_t>(10'000, 500'000),
                .overtake_us = 0,
                .interest_us = draws.Between<int64_t>(1'000'000, 6'000'000)};
  plan.cache.overtake_us = plan.cache.patience_us + draws.Between<int64_t>(0, 1'000'000);
  plan.least_load_us = draws.Between<int64_t>(0, 20'000);
  plan.longest_load_us = plan.least_load_us + draws.Between<int64_t>(0, 200'000);
  plan.load_fault_per_mille = draws.PerMille(500) ? 0 : draws.Between<uint64_t>(10, 300);
  plan.refused_load = draws.PerMille(300) ? draws.Between<size_t>(1, 10) : 0;
}

void PlanEngine(Draws& draws, Plan& plan) {
  plan.scheduler.max_num_batched_tokens = draws.Between<size_t>(1, 64);
  plan.scheduler.max_num_seqs = std::min<size_t>(draws.Between<size_t>(1, 8), plan.scheduler.max_num_batched_tokens);
  plan.context_tokens = draws.Between<size_t>(40, 120);
  const size_t n_least = KvBlocksFor(plan.context_tokens);
  plan.n_blocks = n_least + (draws.PerMille(500) ? draws.Below(4) : draws.Below(40));
  plan.max_queued_requests = draws.Between<size_t>(4, 100);
  plan.vocab = draws.Between<size_t>(8, 64);
  plan.scheduler.longest_weights_wait_us = draws.PerMille(500) ? 0 : draws.Between<int64_t>(1'000, 2'000'000);
  plan.caches_prefixes = draws.PerMille(850);
  plan.shares_answers = draws.PerMille(500);
  plan.least_step_us = draws.Between<int64_t>(200, 2'000);
  plan.longest_step_us = plan.least_step_us + draws.Between<int64_t>(0, 20'000);
  plan.step_fault_per_mille = draws.PerMille(100) ? 5 : 0;
}

void PlanTraffic(Draws& draws, Plan& plan) {
  plan.n_requests = draws.Between<size_t>(5, 150);
  plan.gap_us = draws.PerMille(100) ? draws.Between<int64_t>(100'000, 1'000'000) : draws.Between<int64_t>(500, 40'000);
  plan.is_bursty = draws.PerMille(500);
  plan.is_zipf = draws.PerMille(600);
  plan.base_per_mille = draws.PerMille(500) ? 100 : 0;
  plan.longest_prompt = draws.Between<size_t>(2, plan.context_tokens - 1 + (draws.PerMille(100) ? 4 : 0));
  plan.longest_answer = draws.Between<size_t>(1, 30);
  plan.n_beginnings = draws.Between<size_t>(1, 3);
  plan.n_salts = draws.Between<size_t>(1, 3);
  plan.cancel_per_mille = draws.PerMille(300) ? 0 : draws.Between<uint64_t>(0, 300);
  plan.deadline_per_mille = draws.PerMille(300) ? 0 : draws.Between<uint64_t>(0, 300);
  plan.change_us = draws.PerMille(150) ? 0 : draws.Between<int64_t>(5'000, 200'000);
  plan.pin_per_mille = draws.PerMille(300) ? 0 : draws.Between<uint64_t>(100, 1000);
  plan.jump_per_mille = draws.PerMille(200) ? 100 : 0;
  plan.stops_midway = draws.PerMille(100);
}

void PlanTight(Draws& draws, Plan& plan) {
  plan.kind = Kind::kTight;
  plan.scheduler.max_num_batched_tokens = draws.Between<size_t>(8, 32);
  plan.scheduler.max_num_seqs = draws.Between<size_t>(3, 8);
  plan.longest_prompt = draws.Between<size_t>(2, 30);
  plan.longest_answer = draws.Between<size_t>(20, 90);
  plan.n_blocks = KvBlocksFor(plan.context_tokens) + draws.Below(4);
  plan.vocab = 64;  // few stop by themselves
  plan.gap_us = draws.Between<int64_t>(500, 10'000);
}

void MakeSteady(size_t n, Plan& plan) {
  plan.is_steady = true;
  plan.names.clear();
  plan.contents.clear();
  for (size_t i = 0; i < n; ++i) {
    plan.names.push_back("name-" + std::to_string(i));
    plan.contents.push_back({.digest = "c" + std::to_string(i), .bytes = kBytes});
  }
  plan.scheduler.longest_weights_wait_us = 0;
  plan.load_fault_per_mille = plan.refused_load = plan.step_fault_per_mille = 0;
  plan.stops_midway = plan.is_bursty = false;
  plan.change_us = 0;
  plan.pin_per_mille = 0;
}

// Short requests, all there soon, most for one name: the aging bound is a fraction of the time until all are served.
void PlanSaturated(Draws& draws, Plan& plan) {
  plan.kind = Kind::kSaturated;
  MakeSteady(2, plan);
  plan.cache.budget_bytes = UINT64_MAX;
  plan.cache.idle_timeout_us = 0;
  plan.least_load_us = plan.longest_load_us = 1000;
  plan.scheduler.max_num_batched_tokens = draws.Between<size_t>(12, 16);
  plan.scheduler.max_num_seqs = draws.Between<size_t>(1, 2);
  plan.context_tokens = 16;
  plan.n_blocks = plan.scheduler.max_num_seqs + draws.Below(4);
  plan.longest_prompt = 8;
  plan.longest_answer = 5;
  plan.least_step_us = plan.longest_step_us = 2000;
  plan.n_requests = 400;
  plan.max_queued_requests = 400;
  plan.gap_us = 500;
  plan.is_zipf = false;
  plan.hot_per_mille = 900;
  plan.base_per_mille = 0;
}

// Long steps, short patience, room for two, many requests at a time: leases of the wanted ones overlap for long.
void PlanContended(Draws& draws, Plan& plan) {
  plan.kind = Kind::kContended;
  MakeSteady(draws.Between<size_t>(3, 5), plan);
  plan.is_family = draws.PerMille(400);
  plan.cache.budget_bytes = 2 * kBytes;
  plan.cache.interest_us = 400'000;
  plan.cache.patience_us = draws.Between<int64_t>(10'000, 100'000);
  plan.cache.overtake_us = plan.cache.patience_us + draws.Between<int64_t>(0, 200'000);
  plan.scheduler = {.max_num_seqs = 8, .max_num_batched_tokens = 16};  // small turns: everybody has some running
  plan.context_tokens = 40;
  plan.n_blocks = 30;
  plan.longest_prompt = 6;
  plan.longest_answer = 20;
  plan.least_step_us = 10'000;
  plan.longest_step_us = 20'000;
  plan.least_load_us = 1000;
  plan.longest_load_us = 50'000;
  plan.n_requests = plan.is_family ? 3000 : 2000;
  plan.max_queued_requests = 100;
  plan.gap_us = 6'000;
  plan.deadline_per_mille = 900;  // who is served late or never goes, and does not keep others out of the queue
  plan.vocab = 64;
  plan.is_zipf = true;
  plan.hot_per_mille = draws.Below(300);
}

// As contended, one of them as large as the whole cache and one of half of it: the others come and go past them.
void PlanUneven(Draws& draws, Plan& plan) {
  PlanContended(draws, plan);
  plan.kind = Kind::kUneven;
  plan.is_family = false;
  MakeSteady(draws.Between<size_t>(4, 6), plan);
  plan.cache.budget_bytes = 4 * kBytes;
  plan.contents[plan.contents.size() - 1].bytes = 4 * kBytes;
  plan.contents[plan.contents.size() - 2].bytes = 2 * kBytes;
  plan.n_requests = 2000;
}

}  // namespace

Plan MakePlan(uint64_t seed) {
  Draws draws(seed, Stream::kPlan);
  Plan plan;
  plan.seed = seed;
  PlanContents(draws, plan);
  PlanStore(draws, plan);
  PlanEngine(draws, plan);
  PlanTraffic(draws, plan);
  const uint64_t kind = draws.Below(16);
  if (kind == 0) PlanSaturated(draws, plan);
  if (kind == 1) PlanContended(draws, plan);
  if (kind == 2) PlanUneven(draws, plan);
  if (kind > 11) PlanTight(draws, plan);
  return plan;
}

}  // namespace df::simulation
