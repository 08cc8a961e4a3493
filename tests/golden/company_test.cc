#include <optional>

#include "format/delta_dir.h"
#include "format/peft_adapter.h"
#include "golden_fixtures.h"

namespace df::testing {
namespace {

// The demonstration family: one base, some of its deltas, its adapters.
struct Family {
  explicit Family(KernelContext& context) {
    const std::string demo = std::string(DELTAFOLD_SOURCE_DIR) + "/demo/";
    base = ValueOrDie(LoadBase(context, ValueOrDie(Checkpoint::Open(demo + "zen-mini-base"))));
    members.push_back(nullptr);
    for (const char* name : {"zen-mini-json", "zen-mini-legal", "zen-mini-sort"}) {
      members.push_back(
          ValueOrDie(LoadDelta(context, *base, *ValueOrDie(DeltaDirectory::Open(demo + "deltas/" + name)))));
    }
    for (const char* name : {"format-title", "numbers-fr-rslora"}) {
      members.push_back(
          ValueOrDie(LoadAdapter(context, *base, *ValueOrDie(PeftAdapter::Open(demo + "adapters/" + name)))));
    }
  }

  std::shared_ptr<const BaseWeights> base;
  std::vector<std::shared_ptr<const VariantWeights>> members;  // null = the base
};

// One request: a prompt of its own length, then some decoded tokens (given, so that every run feeds the same).
struct Request {
  size_t member = 0;
  std::vector<int32_t> tokens;
  size_t n_prompt = 0;
};

std::vector<Request> MakeRequests(const Family& family) {
  std::vector<Request> requests;
  for (size_t member = 0; member < family.members.size(); ++member) {
    for (const size_t n_prompt : {1 + 7 * member, 37 - 5 * member}) {
      Request request = {.member = member, .tokens = std::vector<int32_t>(n_prompt + 4), .n_prompt = n_prompt};
      for (size_t i = 0; i < request.tokens.size(); ++i) {
        request.tokens[i] = static_cast<int32_t>(RandomBits(requests.size(), i) % family.base->config.vocab);
      }
      requests.push_back(std::move(request));
    }
  }
  return requests;
}

using Rows = std::vector<std::vector<float>>;  // the logits of every token of one request

// Where a request stands in a run.
struct Progress {
  const Request* request = nullptr;
  Rows* rows = nullptr;
  size_t length = 0;
  std::vector<int32_t> blocks = {};
};

// The next piece of each unfinished request: a prompt in chunks of at most `chunk` tokens, then one token a step.
// Requests are at different places, so that steps mix both phases.
void AddPieces(const Family& family, std::vector<Progress>& progress, size_t chunk, Batch& batch) {
  batch.Clear();
  for (Progress& p : progress) {
    if (p.length == p.request->tokens.size()) continue;
    const bool prefill = p.length < p.request->n_prompt;
    const size_t n = prefill ? std::min(chunk, p.request->n_prompt - p.length) : 1;
    const size_t begin = batch.tokens.size();
    for (size_t i = 0; i < n; ++i) {
      batch.logit_rows.push_back(begin + i);
      batch.tokens.push_back(p.request->tokens[p.length + i]);
    }
    batch.segments.push_back({.begin = begin,
                              .end = begin + n,
                              .phase = prefill ? kernels::Phase::kPrefill : kernels::Phase::kDecode,
                              .variant = family.members[p.request->member].get(),
                              .position = p.length,
                              .block_table = p.blocks.data()});
  }
}

// Runs the chosen requests together and gives each one's logits.
std::vector<Rows> RunTogether(const Family& family, const std::vector<const Request*>& chosen, size_t n_threads,
                              size_t chunk, const KernelOptions& options = {}) {
  constexpr size_t kBlocksEach = 4;  // 64 tokens
  KernelContext context(n_threads, options);
  Decoder decoder(family.base);
  KvPool kv(family.base->config, {.dtype = DType::kF32, .n_blocks = kBlocksEach * chosen.size()});
  std::vector<Rows> results(chosen.size());
  std::vector<Progress> progress;
  for (size_t i = 0; i < chosen.size(); ++i) {
    Progress p = {.request = chosen[i], .rows = &results[i]};
    // Interleaved blocks: neighbours of one request lie far apart.
    for (size_t b = 0; b < kBlocksEach; ++b) p.blocks.push_back(static_cast<int32_t>(b * chosen.size() + i));
    progress.push_back(std::move(p));
  }
  Batch batch;
  for (AddPieces(family, progress, chunk, batch); !batch.tokens.empty(); AddPieces(family, progress, chunk, batch)) {
    const MatView<const float> logits = decoder.Step(context, batch, kv);
    size_t segment = 0;
    for (Progress& p : progress) {
      if (p.length == p.request->tokens.size()) continue;
      const BatchSegment& rows = batch.segments[segment++];
      for (size_t row = rows.begin; row < rows.end; ++row) {
        p.rows->push_back(CopyRow(logits, row, family.base->config.vocab));
      }
      p.length += rows.end - rows.begin;
    }
  }
  return results;
}

TEST(Company, LogitsAreTheSameBitsAloneInPairsAndAllTogether) {
  ForEachTarget([] {
    KernelContext context(2);
    const Family family(context);
    const std::vector<Request> requests = MakeRequests(family);
    std::vector<const Request*> all;
    for (const Request& request : requests) all.push_back(&request);
    std::vector<Rows> alone;
    for (const Request* request : all) alone.push_back(RunTogether(family, {request}, 1, 64)[0]);

    for (const size_t n_threads : {1UL, 2UL}) {
      for (const size_t chunk : {64UL, 11UL}) {
        SCOPED_TRACE(std::to_string(n_threads) + " threads, chunks of " + std::to_string(chunk));
        EXPECT_EQ(RunTogether(family, all, n_threads, chunk), alone);
      }
      for (size_t i = 0; i + 1 < all.size(); i += 2) {
        // Partners of other variants as well as of the same.
        const size_t j = (i + 1 + 2 * n_threads) % all.size();
        if (i == j) continue;
        const std::vector<Rows> pair = RunTogether(family, {all[i], all[j]}, n_threads, 64);
        EXPECT_EQ(pair[0], alone[i]) << "with request " << j;
        EXPECT_EQ(pair[1], alone[j]) << "with request " << i;
      }
    }
  });
}

TEST(Company, LogitsByDefaultStayWithinTheBoundOfTheLookup) {
  ForEachTarget([] {
    KernelContext context(2);
    const Family family(context);
    const std::vector<Request> requests = MakeRequests(family);
    std::vector<const Request*> all;
    for (const Request& request : requests) all.push_back(&request);
    const std::vector<Rows> together = RunTogether(family, all, 2, 11, {.batch_invariant = false});
    for (size_t i = 0; i < all.size(); ++i) {
      const Rows alone = RunTogether(family, {all[i]}, 1, 64)[0];
      ASSERT_EQ(together[i].size(), alone.size());
      for (size_t row = 0; row < alone.size(); ++row) {
        for (size_t token = 0; token < alone[row].size(); ++token) {
          ASSERT_NEAR(together[i][row][token], alone[row][token], kDefaultModeTolerance)
              << "request " << i << " row " << row;
        }
      }
    }
  });
}

}  // namespace
}  // namespace df::testing
