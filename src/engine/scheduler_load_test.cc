// Scheduling across variants: cold ones, failing ones, more of them than there is room for. Time is virtual.
#include <algorithm>
#include <set>

#include "base/rng.h"
#include "engine/scheduler_fixture.h"

namespace df {
namespace {

constexpr size_t kBlock = kernels::kKvBlockTokens;

struct Random {
  uint64_t seed;
  uint64_t k = 0;
  size_t operator()(uint64_t below) { return static_cast<size_t>(RandomBits(seed, k++) % below); }
};

void RunOut(Bench& bench) {
  for (size_t i = 0; bench.scheduler.HasWork(); ++i) {
    bench.Step();
    ASSERT_LT(i, 200'000u) << "no progress";
  }
}

TEST(SchedulerAcrossVariants, AColdVariantBlocksNobodyAndEntersWhenItsWeightsAreThere) {
  Bench bench({.max_num_seqs = 4, .max_num_batched_tokens = 64}, 100);
  const GenerationRef cold = bench.store.Add({.load_us = 50'000});
  Sequence* first = bench.Add(8, 4, cold);
  const Sequence* base = bench.Add(8, 4);
  bench.Step();
  EXPECT_EQ(base->admitted_us, bench.clock.NowUs());
  while (first->admitted_us < 0) bench.Step();
  EXPECT_EQ(bench.finished, (std::vector<std::string>{"1"}));
  EXPECT_NEAR(static_cast<double>(first->admitted_us), 52'000, 1000);
  RunOut(bench);
}

TEST(SchedulerAcrossVariants, AFailedLoadEndsAllItsRequestsAndOnlyThem) {
  Bench bench({.max_num_seqs = 4, .max_num_batched_tokens = 64}, 100);
  const GenerationRef bad = bench.store.Add({.load_us = 20'000, .n_failures = 1});
  const GenerationRef good = bench.store.Add({.load_us = 20'000});
  for (int i = 0; i < 5; ++i) bench.Add(8, 4, bad);
  for (int i = 0; i < 5; ++i) bench.Add(8, 4, good);
  while (bench.n_failed == 0) bench.Step();
  EXPECT_EQ(bench.n_failed, 5u) << "all at once";
  RunOut(bench);
  EXPECT_EQ(bench.n_finished, 5u);
  for (int i = 0; i < 10; ++i) bench.Step();
  bench.Add(8, 4, bad);  // a later load succeeds
  RunOut(bench);
  EXPECT_EQ(bench.n_finished, 6u);
  EXPECT_EQ(bench.store.n_leases(), 0u);
}

TEST(SchedulerAcrossVariants, SaysWhyTheWeightsCannotBeHad) {
  Bench bench({.max_num_seqs = 4, .max_num_batched_tokens = 64}, 100);
  Sequence* waits = bench.Add(8, 4, bench.store.Add({.load_us = 1000, .n_failures = 1}));
  waits->request.variant_name = "sql";
  bench.scheduler.PlanStep(0);
  bench.store.Tick(0);
  bench.store.Tick(2000);
  bench.scheduler.AskAgain();
  bench.scheduler.PlanStep(2000);
  const std::vector<FailedSequence> failed = bench.scheduler.TakeFailed();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].cause.code(), StatusCode::kUnavailable);
  EXPECT_NE(failed[0].cause.message().find("\"sql\""), std::string::npos);
  EXPECT_NE(failed[0].cause.message().find("a flipped bit"), std::string::npos);
  EXPECT_TRUE(bench.scheduler.RemoveById("0").empty());
}

TEST(SchedulerAcrossVariants, AThousandRequestsOfOneVariantDoNotHoldUpAnother) {
  Bench bench({.max_num_seqs = 4, .max_num_batched_tokens = 64}, 1000);
  for (int i = 0; i < 1000; ++i) bench.Add(8, 8);
  const GenerationRef variant = bench.store.Add({.load_us = 1000});
  for (int i = 0; i < 50; ++i) bench.Step();
  const Sequence* other = bench.Add(8, 8, variant);
  while (other->admitted_us < 0) bench.Step();
  // A place comes free every second step; in each of two rounds at most (64 + 2 * 16) / 16 = 6 of the others go by.
  EXPECT_LE(other->admitted_us - other->submitted_us, 2 * 6 * 2 * 1000);
  EXPECT_GT(bench.scheduler.n_waiting(), 900u);
}

TEST(SchedulerAcrossVariants, SharesPlacesByTokensNotByRequests) {
  Bench bench({.max_num_seqs = 2, .max_num_batched_tokens = 64}, 1000);
  const GenerationRef variant = bench.store.Add({});
  std::map<std::string, bool> is_long;
  for (int i = 0; i < 300; ++i) {
    is_long[bench.Add(56, 8)->request.id] = true;
    is_long[bench.Add(8, 8, variant)->request.id] = false;
  }
  while (bench.n_finished < 200) bench.Step();
  size_t n_long = 0;
  for (const std::string& id : bench.finished) n_long += is_long[id] ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(n_long), 200.0 / 5, 6);  // costs 64 and 16
}

TEST(SchedulerAcrossVariants, APreemptedSequenceGetsItsWeightsBackAndGoesFirst) {
  Bench bench({.max_num_seqs = 4, .max_num_batched_tokens = 64}, 4, {.n_places = 1, .patience_us = 5000});
  const GenerationRef a = bench.store.Add({});
  const GenerationRef b = bench.store.Add({});
  bench.Add(kBlock, 2 * kBlock);
  bench.Add(kBlock, 2 * kBlock, a);  // "1", to be preempted
  while (bench.scheduler.stats().n_preemptions == 0) bench.Step();
  bench.Add(kBlock, kBlock, b);  // takes the only place for weights
  bench.Add(kBlock, 2 * kBlock);
  EXPECT_EQ(bench.alive.at("1")->kv.n_blocks(), 0u);
  RunOut(bench);
  const auto end_of = [&](const char* id) { return std::ranges::find(bench.finished, id) - bench.finished.begin(); };
  EXPECT_LT(end_of("1"), end_of("3")) << "as long, and came later";
  EXPECT_EQ(bench.n_finished, 4u);
  EXPECT_EQ(bench.blocks.n_free(), 4u);
  EXPECT_EQ(bench.store.n_leases(), 0u);
}

TEST(SchedulerAcrossVariants, ARequestKeepsItsGenerationWhenTheNameGetsAnother) {
  Bench bench({.max_num_seqs = 4, .max_num_batched_tokens = 64}, 100);
  const GenerationRef old = bench.store.Add({});
  const Sequence* before = bench.Add(8, 30, old);
  while (before->admitted_us < 0) bench.Step();
  const Sequence* after = bench.Add(8, 30, bench.store.Add({}));
  while (after->admitted_us < 0) bench.Step();
  EXPECT_EQ(before->lease.weights()->digest, "0");
  EXPECT_EQ(after->lease.weights()->digest, "1");
  RunOut(bench);
}

TEST(SchedulerAcrossVariants, EndsWhoseTimeIsOverWhileTheirWeightsLoad) {
  Bench bench({.max_num_seqs = 4, .max_num_batched_tokens = 64}, 100);
  bench.Add({.n_prompt = 8, .n_answer = 4, .variant = bench.store.Add({.load_us = 1'000'000}), .timeout_ms = 30});
  EXPECT_EQ(bench.scheduler.PlanStep(0).size(), 0u);
  EXPECT_EQ(bench.scheduler.NextEventUs(), 30'000) << "nobody has to look before";
  while (bench.scheduler.HasWork()) bench.Step();
  EXPECT_EQ(bench.n_expired, 1u);
  EXPECT_EQ(bench.clock.NowUs(), 30'000);
}

TEST(SchedulerAcrossVariants, AsksOnlyForNewsAndForThoseWhoEnter) {
  Bench bench({.max_num_seqs = 2, .max_num_batched_tokens = 64}, 100, {.n_places = 1});
  std::vector<GenerationRef> variants;
  for (int i = 0; i < 100; ++i) variants.push_back(bench.store.Add({.load_us = 10'000'000}));
  for (size_t i = 0; i < 1024; ++i) bench.Add(8, 8, variants[i % 100]);
  bench.Step();
  EXPECT_EQ(bench.store.n_asks(), 100u) << "one for a line, whatever its length";
  for (int i = 0; i < 1000; ++i) bench.Step();
  EXPECT_EQ(bench.store.n_asks(), 100u);
  for (int i = 0; i < 4000; ++i) bench.Step();
  EXPECT_EQ(bench.store.n_asks(), 200u) << "and again so that nobody is forgotten";
}

TEST(SchedulerPrefix, ASecondPromptComputesOnlyWhatItDoesNotShare) {
  Bench bench({.max_num_seqs = 4, .max_num_batched_tokens = 512}, 100);
  bench.Add({.n_prompt = 100, .n_answer = 3, .n_common = 70});
  RunOut(bench);
  bench.Add({.n_prompt = 100, .n_answer = 3, .n_common = 70});
  EXPECT_EQ(bench.Step(), (std::map<std::string, size_t>{{"1", 100 - 4 * kBlock}}));
  RunOut(bench);
  bench.Add({.n_prompt = 64, .n_answer = 3, .n_common = 64});  // all of it is known: one block is computed all the same
  EXPECT_EQ(bench.Step(), (std::map<std::string, size_t>{{"2", kBlock}}));
  RunOut(bench);
  EXPECT_EQ(bench.scheduler.stats().prefix_queries, 264u);
  EXPECT_EQ(bench.scheduler.stats().prefix_hits, 64u + 48u);
}

TEST(SchedulerPrefix, RememberedBlocksGiveWayToWhoeverNeedsRoom) {
  Bench bench({.max_num_seqs = 4, .max_num_batched_tokens = 512}, 10);
  for (int i = 0; i < 20; ++i) {
    bench.Add({.n_prompt = 8 * kBlock, .n_answer = kBlock});
    RunOut(bench);
    EXPECT_EQ(bench.blocks.n_free(), 10u);
  }
  EXPECT_EQ(bench.n_finished, 20u);
  EXPECT_EQ(bench.scheduler.stats().n_preemptions, 0u);
}

TEST(SchedulerPrefix, APreemptedSequenceFindsItsPromptAgain) {
  Bench bench({.max_num_seqs = 4, .max_num_batched_tokens = 64}, 6);
  bench.Add(2 * kBlock, 2 * kBlock);
  const Sequence* young = bench.Add(2 * kBlock, 2 * kBlock);
  while (bench.scheduler.stats().n_preemptions == 0) bench.Step();
  while (young->kv.n_blocks() == 0) bench.Step();
  EXPECT_GE(young->n_cached, 2 * kBlock);
  RunOut(bench);
  EXPECT_EQ(bench.scheduler.stats().prefix_hits, 0u) << "counted once a request";
}

struct Traffic {
  size_t n_requests = 0, n_variants = 0;
  size_t max_prompt = 0, max_answer = 0;
  bool has_failures = false, has_cancels = false;
};

// Requests of a few variants, some replaced by and by.
class RandomLoad {
 public:
  RandomLoad(Bench& bench, const Traffic& traffic, uint64_t seed) : bench_(bench), traffic_(traffic), draw_{seed} {
    variants_.push_back(nullptr);
    for (size_t i = 0; i < traffic.n_variants; ++i) variants_.push_back(NewVariant());
  }

  // Every step of the load, with what holds at each; then everybody has ended once and all has come back.
  void Run(const std::function<void(const Sequence&, size_t n_before)>& on_arrival) {
    for (size_t n_steps = 0; bench_.n_added < traffic_.n_requests || bench_.scheduler.HasWork(); ++n_steps) {
      ASSERT_LT(n_steps, 300'000u) << "no progress";
      if (bench_.n_added < traffic_.n_requests && draw_(3) == 0) Arrive(on_arrival);
      if (traffic_.has_cancels && draw_(40) == 0) bench_.Cancel(std::to_string(draw_(bench_.n_added + 1)));
      if (draw_(60) == 0 && traffic_.n_variants > 0) variants_[1 + draw_(traffic_.n_variants)] = NewVariant();
      bench_.Step();
      if (n_steps % 8 == 0) {
        ASSERT_EQ(bench_.Audit(), "");
      }
    }
    EXPECT_EQ(bench_.n_finished + bench_.n_failed + bench_.n_expired + bench_.n_cancelled, traffic_.n_requests);
    EXPECT_TRUE(bench_.alive.empty());
    EXPECT_EQ(bench_.store.n_leases(), 0u);
    EXPECT_EQ(bench_.blocks.n_free(), bench_.blocks.n_total());
    EXPECT_EQ(bench_.Audit(), "");
  }

 private:
  GenerationRef NewVariant() {
    const bool fails = traffic_.has_failures && draw_(4) == 0;
    return bench_.store.Add({.load_us = static_cast<int64_t>(1000 * (1 + draw_(30))), .n_failures = fails ? 1u : 0u});
  }

  void Arrive(const std::function<void(const Sequence&, size_t n_before)>& on_arrival) {
    BenchRequest request{.n_prompt = 1 + draw_(traffic_.max_prompt),
                         .n_answer = 1 + draw_(traffic_.max_answer),
                         .variant = variants_[draw_(variants_.size())]};
    request.n_common = draw_(request.n_prompt + 1);
    if (traffic_.has_cancels && draw_(8) == 0) request.timeout_ms = static_cast<int64_t>(draw_(200));
    size_t n_before = 0;
    for (const auto& [id, other] : bench_.alive) {
      n_before += other->request.variant == request.variant && other->admitted_us < 0 ? 1 : 0;
    }
    on_arrival(*bench_.Add(request), n_before);
  }

  Bench& bench_;
  const Traffic traffic_;
  Random draw_;
  std::vector<GenerationRef> variants_;
};

// Any arrivals, cancellations, failures, replacements, rooms for weights; any pool that holds the longest sequence.
TEST(SchedulerLoad, EndsEveryRequestOnceAndGivesEverythingBack) {
  size_t n_preemptions = 0, n_failed = 0, n_hits = 0;
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random draw{~seed};
    const size_t n_batched = 1 + draw(40);
    const FakeStoreOptions store = {.n_places = 1 + draw(3), .patience_us = static_cast<int64_t>(1000 * draw(20))};
    Bench bench({.max_num_seqs = 1 + draw(n_batched), .max_num_batched_tokens = n_batched}, 5 + draw(6), store);
    bench.shares_prefixes = draw(4) != 0;
    RandomLoad load(bench,
                    {.n_requests = 1 + draw(30),
                     .n_variants = draw(6),
                     .max_prompt = 50,
                     .max_answer = 29,
                     .has_failures = draw(2) == 0,
                     .has_cancels = draw(2) == 0},
                    seed);
    load.Run([](const Sequence&, size_t) {});
    if (HasFatalFailure() || HasNonfatalFailure()) return;
    n_preemptions += bench.scheduler.stats().n_preemptions;
    n_hits += bench.scheduler.stats().prefix_hits;
    n_failed += bench.n_failed;
  }
  EXPECT_GT(n_preemptions, 500u);
  EXPECT_GT(n_hits, 1000u);
  EXPECT_GT(n_failed, 500u);
}

// The bound of scheduler.h, with the pool large enough that nobody is preempted: P = 0.
struct BoundTerms {
  int64_t step_us = 0, weights_us = 0;
  int64_t n_seqs = 0, max_tokens = 0, n_lines = 0, max_cost = 0, quantum = 0;
  int64_t TurnUs() const {
    const int64_t n_rounds = (2 * max_cost + quantum - 1) / quantum + 1;
    return (n_seqs * max_tokens + n_lines * n_rounds * (quantum + 2 * max_cost)) * step_us;  // rho = 1
  }
  int64_t BoundUs(int64_t n_before) const { return 2 * (n_before + 1) * (weights_us + TurnUs()); }
};

TEST(SchedulerLoad, NobodyWaitsLongerThanTheBound) {
  constexpr int64_t kMaxTokens = 40, kLongestLoadUs = 30'000;
  double closest = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random draw{~seed};
    const size_t n_batched = 4 + draw(20);
    const size_t n_seqs = 1 + draw(4);
    const FakeStoreOptions store = {.n_places = 1 + draw(2), .patience_us = static_cast<int64_t>(1000 * draw(20))};
    Bench bench({.max_num_seqs = n_seqs, .max_num_batched_tokens = n_batched}, n_seqs * KvBlocksFor(kMaxTokens), store);
    const size_t n_requests = 5 + draw(60);
    RandomLoad load(bench, {.n_requests = n_requests, .n_variants = draw(6), .max_prompt = 20, .max_answer = 20}, seed);
    BoundTerms terms = {.step_us = bench.step_us,
                        .n_seqs = static_cast<int64_t>(n_seqs),
                        .max_tokens = kMaxTokens,
                        .max_cost = kMaxTokens,
                        .quantum = static_cast<int64_t>(n_batched)};
    std::map<std::string, int64_t> n_before_of;
    std::vector<std::pair<int64_t, int64_t>> ended;
    load.Run([&](const Sequence& arrived, size_t n_before) {
      std::set<const Generation*> lines;
      for (const auto& [id, other] : bench.alive) {
        if (other->admitted_us < 0) lines.insert(other->request.variant.get());
      }
      terms.n_lines = std::max(terms.n_lines, static_cast<int64_t>(lines.size()));
      n_before_of[arrived.request.id] = static_cast<int64_t>(n_before);
      bench.on_end = [&](const Sequence& sequence) {
        ended.emplace_back(n_before_of.at(sequence.request.id), sequence.admitted_us - sequence.submitted_us);
      };
    });
    if (HasFatalFailure() || HasNonfatalFailure()) return;
    EXPECT_EQ(ended.size(), n_requests);
    EXPECT_EQ(bench.scheduler.stats().n_preemptions, 0u);
    // The fake store grants in order of asking; each before it may keep the others' room for its patience, until their
    // sequences have ended and until those whose weights were loaded have had their turn, then it loads.
    terms.weights_us =
        terms.n_lines * (2 * store.patience_us + kLongestLoadUs + 4 * bench.step_us + 2 * terms.TurnUs());
    for (const auto& [n_before, wait_us] : ended) {
      EXPECT_LE(wait_us, terms.BoundUs(n_before));
      closest = std::max(closest, static_cast<double>(wait_us) / static_cast<double>(terms.BoundUs(n_before)));
    }
  }
  RecordProperty("closest_to_bound", std::to_string(closest));
}

// Clients with one request after the other, of a variant drawn evenly from the working set, before a store with room
// for 4 of them; a load takes a second, 50 steps, and a generation stays for two at least.
struct Curve {
  double tokens_per_step = 0;
  double longest_wait_s = 0;
  size_t n_loads = 0;
};
Curve Measure(size_t n_variants, size_t n_clients) {
  constexpr size_t kSteps = 15'000;
  Bench bench({.max_num_seqs = 32, .max_num_batched_tokens = 512}, 32 * KvBlocksFor(128),
              {.n_places = 4, .patience_us = 2'000'000});
  bench.step_us = 20'000;
  Random draw{7};
  Curve curve;
  bench.on_end = [&](const Sequence& sequence) {
    const auto wait_us = static_cast<double>(sequence.admitted_us - sequence.submitted_us);
    curve.longest_wait_s = std::max(curve.longest_wait_s, wait_us * 1e-6);
  };
  std::vector<GenerationRef> variants;
  for (size_t i = 0; i < n_variants; ++i) variants.push_back(bench.store.Add({.load_us = 1'000'000}));
  for (size_t step = 0; step < kSteps; ++step) {
    while (bench.alive.size() < n_clients) bench.Add(64, 32 + draw(33), variants[draw(n_variants)]);
    for (const auto& [id, n_rows] : bench.Step()) curve.tokens_per_step += static_cast<double>(n_rows) / kSteps;
  }
  curve.n_loads = bench.store.n_loads();
  return curve;
}

// The table of docs/scheduling.md; DELTAFOLD_PRINT_CURVE=1 prints it.
TEST(SchedulerLoad, AWorkingSetLargerThanTheRoomSlowsDownSmoothly) {
  for (const size_t n_clients : {64u, 256u}) {
    const double all_resident = Measure(4, n_clients).tokens_per_step;
    double before = all_resident;
    for (const size_t n_variants : {4u, 5u, 6u, 8u, 10u, 12u}) {
      const Curve curve = Measure(n_variants, n_clients);
      if (getenv("DELTAFOLD_PRINT_CURVE") != nullptr) {
        printf("%zu clients, %zu variants: %.1f tokens a step (%.0f %%), %zu loads, longest wait %.1f s\n", n_clients,
               n_variants, curve.tokens_per_step, 100 * curve.tokens_per_step / all_resident, curve.n_loads,
               curve.longest_wait_s);
      }
      EXPECT_GT(curve.tokens_per_step, 0.7 * before) << n_variants << ": no cliff";
      // With work for those who are resident nothing is lost; else as much as there is less of it.
      const double share_resident = n_clients > 64 ? 0.97 : 0.97 * 4 / static_cast<double>(n_variants);
      EXPECT_GT(curve.tokens_per_step, share_resident * all_resident) << n_variants;
      before = curve.tokens_per_step;
    }
  }
}

}  // namespace
}  // namespace df
