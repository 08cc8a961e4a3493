#include "engine/sizing.h"

#include <gtest/gtest.h>

#include "engine/kv_cache.h"
#include "model/kv_pool.h"
#include "testing/tiny_family.h"

namespace df {
namespace {

class Sizing : public ::testing::Test {
 protected:
  Result<EngineOptions> Resolve(EngineOptions options, uint64_t available_bytes = 0) {
    return ResolveOptions(config_, options, available_bytes);
  }

  const ModelConfig config_ = testing::ParsedTinyConfig();  // 256 positions
  const uint64_t block_bytes_ = KvPool::BlockBytes(config_, DType::kBf16);
};

TEST_F(Sizing, FillsInDefaults) {
  const EngineOptions options = testing::ValueOrDie(Resolve({}));
  EXPECT_GE(options.n_threads, 1u);
  EXPECT_EQ(options.max_model_len, 256u);
  EXPECT_EQ(options.kv_cache_bytes, 64 * KvBlocksFor(256) * block_bytes_);
}

TEST_F(Sizing, TakesHalfOfFreeMemoryAtMost) {
  const EngineOptions options = testing::ValueOrDie(Resolve({}, 200 * block_bytes_));
  EXPECT_EQ(options.kv_cache_bytes, 100 * block_bytes_);
}

TEST_F(Sizing, ShortensTheContextToWhatTheCacheHoldsUnlessItWasAskedFor) {
  EXPECT_EQ(testing::ValueOrDie(Resolve({.kv_cache_bytes = 3 * block_bytes_})).max_model_len, 48u);
  const Status refused = testing::StatusOf(Resolve({.max_model_len = 49, .kv_cache_bytes = 3 * block_bytes_}));
  EXPECT_EQ(refused.code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(refused.message().find("48"), std::string::npos);
  EXPECT_NE(refused.message().find("49"), std::string::npos);
}

TEST_F(Sizing, RefusesWhatCannotBe) {
  EXPECT_EQ(Resolve({.kv_cache_bytes = block_bytes_ - 1}).status().code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Resolve({.kv_cache_bytes = 1000 * block_bytes_}, 999 * block_bytes_).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(Resolve({.max_model_len = 257}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Resolve({.max_model_len = 1}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Resolve({.max_num_seqs = 0}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Resolve({.max_num_batched_tokens = size_t{1} << 40}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Resolve({.n_threads = 1'000'000}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Resolve({.kv_dtype = DType::kF16}).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(Sizing, NeverRunsMoreSequencesThanAStepHasRows) {
  EXPECT_EQ(testing::ValueOrDie(Resolve({.max_num_batched_tokens = 8})).max_num_seqs, 8u);
}

TEST_F(Sizing, KnowsTheFreeMemoryOfThisMachine) { EXPECT_GT(AvailableMemoryBytes(), 0u); }

}  // namespace
}  // namespace df
