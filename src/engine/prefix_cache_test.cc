// The cache of prompt beginnings: index, blocks and leases. What it does to answers is in engine_prefix_test.cc.
#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "base/rng.h"
#include "engine/kv_cache.h"

namespace df {
namespace {

constexpr size_t kBlock = kernels::kKvBlockTokens;
using Domain = std::shared_ptr<const PrefixDomain>;

Domain MakeDomain(std::string_view digest, std::string_view salt = "") {
  return MakePrefixDomain(
      {.base_fingerprint = "base", .kv_dtype = "bf16", .generation_digest = digest, .cache_salt = salt});
}

std::vector<int32_t> Prompt(size_t n, int32_t first = 0) {
  std::vector<int32_t> tokens(n);
  for (size_t i = 0; i < n; ++i) tokens[i] = first + static_cast<int32_t>(i);
  return tokens;
}

std::vector<int32_t> FirstOf(const std::vector<int32_t>& tokens, size_t n) {
  return {tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(n)};
}

size_t NumFound(const KvBlocks& blocks, const Domain& domain, const std::vector<int32_t>& tokens) {
  PrefixMatch match;
  blocks.FindPrefix(domain, {tokens, {}}, tokens.size() / kBlock, match);
  return match.blocks.size();
}

// Computes the tokens and gives the blocks back.
void Compute(KvBlocks& blocks, const Domain& domain, const std::vector<int32_t>& tokens) {
  KvLease lease(blocks);
  ASSERT_TRUE(lease.TryCover(tokens.size()));
  lease.Remember(domain, {tokens, {}}, tokens.size());
}

TEST(PrefixCache, FindsFullBlocksOfTheLongestBeginning) {
  KvBlocks blocks(8);
  const Domain domain = MakeDomain("");
  Compute(blocks, domain, Prompt(3 * kBlock + 5));
  EXPECT_EQ(blocks.n_idle(), 3u) << "a block that is not full is not remembered";
  EXPECT_EQ(blocks.n_free(), 8u);
  EXPECT_EQ(NumFound(blocks, domain, Prompt(6 * kBlock)), 3u);
  EXPECT_EQ(NumFound(blocks, domain, Prompt(2 * kBlock)), 2u);
  std::vector<int32_t> other = Prompt(3 * kBlock);
  other[kBlock + 3] = 9999;
  EXPECT_EQ(NumFound(blocks, domain, other), 1u) << "what comes behind a difference is another content";
  EXPECT_EQ(NumFound(blocks, domain, Prompt(kBlock, 1)), 0u);
  EXPECT_EQ(NumFound(blocks, domain, Prompt(2 * kBlock, kBlock)), 0u) << "the same tokens at another place";
}

TEST(PrefixCache, NeverCrossesGenerationSaltDtypeOrBase) {
  KvBlocks blocks(8);
  const Domain domain = MakeDomain("g1", "tenant");
  Compute(blocks, domain, Prompt(kBlock));
  EXPECT_EQ(NumFound(blocks, MakeDomain("g1", "tenant"), Prompt(kBlock)), 1u);
  for (const Domain& other :
       {MakeDomain("g1", ""), MakeDomain("g1", "tenan"), MakeDomain("g2", "tenant"), MakeDomain("", "tenant"),
        MakeDomain("g1tenant", ""), MakePrefixDomain({"base", "f32", "g1", "tenant"}),
        MakePrefixDomain({"bas", "bf16", "g1", "tenant"})}) {
    EXPECT_EQ(NumFound(blocks, other, Prompt(kBlock)), 0u) << other->text;
  }
}

TEST(PrefixCache, DoesNotTrustAHash) {
  KvBlocks blocks(8);
  const Domain domain = MakeDomain("g1");
  Compute(blocks, domain, Prompt(kBlock));
  const auto forged = std::make_shared<const PrefixDomain>(PrefixDomain{.text = "another", .hash = domain->hash});
  EXPECT_EQ(NumFound(blocks, forged, Prompt(kBlock)), 0u);
}

TEST(PrefixCache, ForgetsTheLeastRecentlyUsedAndTheEndOfASequenceFirst) {
  KvBlocks blocks(6);
  const Domain domain = MakeDomain("");
  Compute(blocks, domain, Prompt(3 * kBlock));
  Compute(blocks, domain, Prompt(2 * kBlock, 500));
  KvLease lease(blocks);
  EXPECT_TRUE(lease.TryCover(3 * kBlock));  // one was empty
  EXPECT_EQ(NumFound(blocks, domain, Prompt(3 * kBlock)), 1u);
  EXPECT_EQ(NumFound(blocks, domain, Prompt(2 * kBlock, 500)), 2u);
  EXPECT_TRUE(lease.TryCover(6 * kBlock));
  EXPECT_EQ(blocks.n_free(), 0u);
  EXPECT_EQ(NumFound(blocks, domain, Prompt(2 * kBlock, 500)), 0u);
}

TEST(PrefixCache, SharesHeldBlocksAndKeepsOneOfTwoEqualOnes) {
  KvBlocks blocks(8);
  const Domain domain = MakeDomain("");
  const std::vector<int32_t> tokens = Prompt(2 * kBlock);
  KvLease a(blocks);
  KvLease b(blocks);
  EXPECT_TRUE(a.TryCover(2 * kBlock));
  EXPECT_TRUE(b.TryCover(2 * kBlock));
  a.Remember(domain, {tokens, {}}, tokens.size());
  EXPECT_EQ(blocks.n_free(), 4u);
  b.Remember(domain, {tokens, {}}, tokens.size());
  EXPECT_EQ(blocks.n_free(), 6u);
  EXPECT_TRUE(std::equal(a.block_table(), a.block_table() + 2, b.block_table()));
  a.Release();
  EXPECT_EQ(blocks.n_free(), 6u);
  PrefixMatch match;
  blocks.FindPrefix(domain, {tokens, {}}, 2, match);
  EXPECT_EQ(match.n_held, 2u);
  b.Release();
  EXPECT_EQ(blocks.n_free(), 8u);
}

TEST(PrefixCache, FindsNothingBehindABlockThatHasGone) {
  KvBlocks blocks(2);
  const Domain domain = MakeDomain("");
  PrefixIndex index(3);
  const auto tokens = [](int32_t value) {
    BlockTokens filled;
    filled.fill(value);
    return filled;
  };
  index.Insert(0, {domain, kNoBlock, tokens(1)});
  index.Insert(1, {domain, 0, tokens(2)});
  index.Erase(0);
  index.Insert(0, {domain, kNoBlock, tokens(3)});
  EXPECT_EQ(index.FindOrNone({domain, 0, tokens(2)}), kNoBlock);
  EXPECT_EQ(index.FindOrNone({domain, kNoBlock, tokens(1)}), kNoBlock);
}

// Any order of leases, growth, remembering and release: every block is held, idle or empty, and what is found is what
// was written there.
TEST(PrefixCache, LosesNoBlockAndMixesNoContentInAnyOrderOfCalls) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    uint64_t k = 0;
    const auto draw = [&](uint64_t below) { return static_cast<size_t>(RandomBits(seed, k++) % below); };
    KvBlocks blocks(4 + draw(20));
    const std::vector<Domain> domains = {MakeDomain(""), MakeDomain("g"), MakeDomain("", "salt")};
    // What the pool's memory holds: of each block its domain and all tokens up to its end.
    std::vector<std::pair<std::string, std::vector<int32_t>>> memory(blocks.n_total());
    struct Client {
      KvLease lease;
      Domain domain;
      std::vector<int32_t> tokens;
      size_t n_cached;
    };
    std::vector<std::unique_ptr<Client>> clients;
    PrefixMatch match;
    for (int step = 0; step < 120; ++step) {
      const size_t action = draw(4);
      if (action == 0) {
        std::vector<int32_t> tokens;  // few different beginnings
        for (size_t i = 0, n = 1 + draw(5 * kBlock); i < n; ++i) {
          tokens.push_back(i % kBlock == 0 ? static_cast<int32_t>(draw(2)) : 7);
        }
        auto client = std::make_unique<Client>(Client{KvLease(blocks), domains[draw(3)], tokens, 0});
        blocks.FindPrefix(client->domain, {client->tokens, {}}, (tokens.size() - 1) / kBlock, match);
        for (size_t i = 0; i < match.blocks.size(); ++i) {
          const auto& [text, written] = memory[static_cast<size_t>(match.blocks[i])];
          EXPECT_EQ(text, client->domain->text);
          EXPECT_EQ(written, FirstOf(tokens, (i + 1) * kBlock));
        }
        client->lease.Adopt(match);
        client->n_cached = match.blocks.size() * kBlock;
        if (client->lease.TryCover(tokens.size())) clients.push_back(std::move(client));
      } else if (!clients.empty()) {
        const size_t at = draw(clients.size());
        Client& client = *clients[at];
        if (action == 1) {
          clients.erase(clients.begin() + static_cast<std::ptrdiff_t>(at));
        } else {
          const size_t n_rows = std::min(1 + draw(40), client.tokens.size() - client.n_cached);
          client.n_cached += n_rows;
          for (size_t i = 0; i < KvBlocksFor(client.n_cached); ++i) {
            const size_t n_end = std::min((i + 1) * kBlock, client.n_cached);
            memory[static_cast<size_t>(client.lease.block_table()[i])] = {client.domain->text,
                                                                          FirstOf(client.tokens, n_end)};
          }
          client.lease.Remember(client.domain, {client.tokens, {}}, client.n_cached);
        }
      }
      std::vector<int32_t> held;
      for (const auto& client : clients) {
        held.insert(held.end(), client->lease.block_table(), client->lease.block_table() + client->lease.n_blocks());
      }
      ASSERT_EQ(blocks.Audit(held), "") << "seed " << seed << " step " << step;
    }
    clients.clear();
    EXPECT_EQ(blocks.n_free(), blocks.n_total());
  }
}

}  // namespace
}  // namespace df
