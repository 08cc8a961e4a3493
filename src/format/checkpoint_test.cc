#include "format/checkpoint.h"

#include <gtest/gtest.h>

namespace df {
namespace {

TEST(Checkpoint, OpensEveryReferenceModel) {
  for (const char* name :
       {"llama3-gqa", "llama-fp16-sharded", "qwen2-bias-tied", "qwen3-qknorm-tied", "mistral-window16"}) {
    const auto opened = Checkpoint::Open(std::string(DELTAFOLD_SOURCE_DIR "/tests/golden/models/") + name);
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    EXPECT_NE((*opened)->FindOrNull("model.embed_tokens.weight"), nullptr);
  }
}

}  // namespace
}  // namespace df
