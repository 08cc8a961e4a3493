#include "engine/scheduler.h"

#include <set>

#include "engine/scheduler_fixture.h"

namespace df {
namespace {

constexpr size_t kBlock = kernels::kKvBlockTokens;

using Rows = std::map<std::string, size_t>;

TEST(KvLease, TakesAllBlocksOrNone) {
  KvBlocks blocks(3);
  KvLease a(blocks);
  KvLease b(blocks);
  EXPECT_TRUE(a.TryCover(kBlock + 1));
  EXPECT_EQ(a.n_blocks(), 2u);
  EXPECT_FALSE(b.TryCover(2 * kBlock));
  EXPECT_EQ(b.n_blocks(), 0u);
  EXPECT_TRUE(b.TryCover(kBlock));
  EXPECT_TRUE(a.TryCover(2 * kBlock));
  EXPECT_FALSE(a.TryCover(2 * kBlock + 1));
  a.Release();
  EXPECT_EQ(blocks.n_free(), 2u);
}

TEST(KvLease, GivesItsBlocksBackAtItsEnd) {
  KvBlocks blocks(4);
  {
    KvLease lease(blocks);
    EXPECT_TRUE(lease.TryCover(4 * kBlock));
    const KvLease moved = std::move(lease);
    EXPECT_EQ(blocks.n_free(), 0u);
  }
  EXPECT_EQ(blocks.n_free(), 4u);
}

TEST(Scheduler, PrefillsInChunksAndThenDecodes) {
  Bench bench({.max_num_seqs = 4, .max_num_batched_tokens = 8}, 100);
  bench.Add(20, 3);
  EXPECT_EQ(bench.Step(), (Rows{{"0", 8}}));
  EXPECT_EQ(bench.Step(), (Rows{{"0", 8}}));
  EXPECT_EQ(bench.Step(), (Rows{{"0", 4}}));  // draws the first token
  EXPECT_EQ(bench.Step(), (Rows{{"0", 1}}));
  EXPECT_EQ(bench.Step(), (Rows{{"0", 1}}));
  EXPECT_EQ(bench.finished, (std::vector<std::string>{"0"}));
  EXPECT_FALSE(bench.scheduler.HasWork());
  EXPECT_EQ(bench.blocks.n_free(), 100u);
}

TEST(Scheduler, LetsDecodesGoOnBesideALongPrefill) {
  Bench bench({.max_num_seqs = 4, .max_num_batched_tokens = 8}, 100);
  bench.Add(4, 100);
  bench.Step();
  bench.Add(1000, 1);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(bench.Step(), (Rows{{"0", 1}, {"1", 7}}));
}

TEST(Scheduler, FillsAStepWithSeveralPrompts) {
  Bench bench({.max_num_seqs = 4, .max_num_batched_tokens = 8}, 100);
  for (int i = 0; i < 3; ++i) bench.Add(3, 5);
  EXPECT_EQ(bench.Step(), (Rows{{"0", 3}, {"1", 3}, {"2", 2}}));
  EXPECT_EQ(bench.Step(), (Rows{{"0", 1}, {"1", 1}, {"2", 1}}));
}

TEST(Scheduler, RunsAtMostMaxNumSeqs) {
  Bench bench({.max_num_seqs = 2, .max_num_batched_tokens = 8}, 100);
  for (int i = 0; i < 5; ++i) bench.Add(1, 2);
  EXPECT_EQ(bench.Step(), (Rows{{"0", 1}, {"1", 1}}));
  EXPECT_EQ(bench.scheduler.n_waiting(), 3u);
  while (bench.scheduler.HasWork()) EXPECT_LE(bench.Step().size(), 2u);
  EXPECT_EQ(bench.finished.size(), 5u);
}

TEST(Scheduler, SortsByVariantAndPhaseWithTheBaseFirst) {
  const GenerationRef a = FixedGeneration(std::make_shared<VariantWeights>());
  const GenerationRef b = FixedGeneration(std::make_shared<VariantWeights>());
  Bench bench({.max_num_seqs = 16, .max_num_batched_tokens = 64}, 100);
  for (const auto& variant : {a, b, GenerationRef(), b, a, GenerationRef()}) {
    bench.Add(2, 9, variant);
  }
  bench.Step();
  for (const auto& variant : {b, GenerationRef(), a}) bench.Add(2, 9, variant);
  const std::span<const Piece> pieces = bench.scheduler.PlanStep(0);
  ASSERT_EQ(pieces.size(), 9u);
  EXPECT_EQ(pieces[0].sequence->request.variant, nullptr);
  std::set<std::pair<const Generation*, kernels::Phase>> seen;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const std::pair key(pieces[i].sequence->request.variant.get(), pieces[i].phase);
    const bool goes_on = i > 0 && key == std::pair(pieces[i - 1].sequence->request.variant.get(), pieces[i - 1].phase);
    EXPECT_TRUE(goes_on || seen.insert(key).second) << "piece " << i << " comes back to an earlier group";
  }
  EXPECT_EQ(seen.size(), 6u);
}

TEST(Scheduler, PreemptsTheYoungestAndReplaysWhatItHadGenerated) {
  Bench bench({.max_num_seqs = 4, .max_num_batched_tokens = 64}, 4);
  bench.shares_prefixes = false;
  bench.Add(kBlock, 2 * kBlock);                    // needs 3 blocks in the end
  Sequence* young = bench.Add(kBlock, 2 * kBlock);  // and so does this one
  while (bench.scheduler.stats().n_preemptions == 0) bench.Step();
  EXPECT_EQ(young->kv.n_blocks(), 0u);
  EXPECT_EQ(young->n_cached, 0u);
  EXPECT_EQ(bench.scheduler.n_waiting(), 1u);
  const size_t n_generated = young->generated.size();
  EXPECT_EQ(n_generated, kBlock + 1);
  while (bench.finished.empty()) EXPECT_EQ(bench.Step().count("1"), 0u);
  EXPECT_EQ(bench.Step(), (Rows{{"1", kBlock}}));       // the prompt, by the prefill path
  EXPECT_EQ(bench.Step(), (Rows{{"1", n_generated}}));  // the answer so far, by the decode path
  EXPECT_EQ(young->generated.size(), n_generated + 1);
  while (bench.scheduler.HasWork()) bench.Step();
  EXPECT_EQ(bench.finished, (std::vector<std::string>{"0", "1"}));
  EXPECT_EQ(bench.blocks.n_free(), 4u);
}

TEST(Scheduler, DrawsNoTokenFromReplayedRows) {
  Bench bench({.max_num_seqs = 4, .max_num_batched_tokens = 5}, 4);
  bench.Add(kBlock, 2 * kBlock);
  Sequence* young = bench.Add(kBlock, 2 * kBlock);
  while (bench.scheduler.stats().n_preemptions == 0) bench.Step();
  while (young->n_cached < kBlock) bench.Step();
  size_t n_generated = young->generated.size();
  while (young->n_pending() > 1) {
    const size_t n_before = young->n_pending();
    bench.Step();
    if (n_before > 5) {
      EXPECT_EQ(young->generated.size(), n_generated);
    }
    n_generated = young->generated.size();
  }
  while (bench.scheduler.HasWork()) bench.Step();
  EXPECT_EQ(bench.finished.size(), 2u);
}

TEST(Scheduler, MeasuresTheTimeInTheQueue) {
  Bench bench({.max_num_seqs = 1, .max_num_batched_tokens = 8}, 100);
  bench.Add(1, 5);
  Sequence* second = bench.Add(1, 5);
  while (second->admitted_us < 0) bench.Step();
  EXPECT_EQ(second->admitted_us - second->submitted_us, 6000);
}

TEST(Scheduler, RemovesWaitingAndRunningSequencesAlike) {
  Bench bench({.max_num_seqs = 1, .max_num_batched_tokens = 8}, 100);
  bench.Add(20, 5);
  bench.Add(20, 5);
  bench.Step();
  EXPECT_EQ(bench.scheduler.RemoveById("1").size(), 1u);
  EXPECT_EQ(bench.scheduler.n_waiting(), 0u);
  EXPECT_EQ(bench.scheduler.RemoveById("0").size(), 1u);
  EXPECT_TRUE(bench.scheduler.RemoveById("0").empty());
  EXPECT_FALSE(bench.scheduler.HasWork());
  EXPECT_EQ(bench.blocks.n_free(), 100u);
}

}  // namespace
}  // namespace df
