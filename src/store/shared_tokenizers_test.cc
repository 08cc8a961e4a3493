// A variant's own tokenizer is one with those of equal bytes, and counts against the budget.
#include "store/shared_tokenizers.h"

#include <fstream>

#include "store/live_store_fixture.h"
#include "testing/refusal.h"

namespace df {
namespace {

using testing::ExpectRefusal;
using testing::StatusOf;
using testing::ValueOrDie;

class SharedTokenizersTest : public LiveStoreTest {
 protected:
  // A copy of the adapter with the base's tokenizer, its bytes changed by `end`.
  static std::string WithTokenizer(const std::string& copy, const std::string& end) {
    const std::string directory = CopyOf("adapter", copy);
    std::filesystem::copy_file(Path("base") + "/tokenizer.json", directory + "/tokenizer.json",
                               std::filesystem::copy_options::overwrite_existing);
    std::ofstream(directory + "/tokenizer.json", std::ios::app) << end;
    return directory;
  }
  static const Tokenizer* TokenizerOf(const std::shared_ptr<const Variant>& variant) {
    return variant->text->tokenizer.get();
  }
};

TEST_F(SharedTokenizersTest, EqualBytesAreOneTokenizerAndTheBasesIsFree) {
  const auto store = Make();
  const auto as_base = ValueOrDie(store->Register("as-base", WithTokenizer("as-base", ""), {}));
  EXPECT_EQ(TokenizerOf(as_base), base_.variant->text->tokenizer.get());
  EXPECT_EQ(store->Stats().reserved_bytes, 0u);
  const auto one = ValueOrDie(store->Register("one", WithTokenizer("one", "\n"), {}));
  const auto same = ValueOrDie(store->Register("same", WithTokenizer("same", "\n"), {}));
  const auto other = ValueOrDie(store->Register("other", WithTokenizer("other", "\n\n"), {}));
  EXPECT_EQ(TokenizerOf(one), TokenizerOf(same));
  EXPECT_NE(TokenizerOf(one), TokenizerOf(other));
  EXPECT_NE(TokenizerOf(one), TokenizerOf(as_base));
  EXPECT_EQ(store->Stats().reserved_bytes, TokenizerOf(one)->memory_bytes() + TokenizerOf(other)->memory_bytes());
  EXPECT_EQ(store->Stats().loads, 0u) << "weights only";
}

TEST_F(SharedTokenizersTest, ItsBytesComeBackWithTheLastWhoHasIt) {
  const auto store = Make();
  auto one = ValueOrDie(store->Register("one", WithTokenizer("one", "\n"), {}));
  auto same = ValueOrDie(store->Register("same", WithTokenizer("same", "\n"), {}));
  const uint64_t bytes = TokenizerOf(one)->memory_bytes();
  EXPECT_GT(bytes, 0u);
  DF_EXPECT_OK(store->Retire("one", ""));
  DF_EXPECT_OK(store->Retire("same", ""));
  same.reset();
  EXPECT_EQ(store->Stats().reserved_bytes, bytes) << "a request holds the variant still";
  one.reset();
  EXPECT_TRUE(Eventually([&] { return store->Stats().reserved_bytes == 0; }));
  EXPECT_TRUE(store->Stats().evictions.empty());
}

TEST_F(SharedTokenizersTest, MakesRoomForItselfOrIsRefused) {
  const uint64_t delta_bytes = BytesOf("delta"), tokenizer_bytes = base_.variant->text->tokenizer->memory_bytes();
  const uint64_t adapter_bytes =
      ValueOrDie(OpenVariant(*base_.weights, WithTokenizer("one", "\n")))->info.resident_bytes;
  ASSERT_LT(adapter_bytes, delta_bytes);
  const uint64_t budget = delta_bytes + tokenizer_bytes - 1;
  const auto store = Make({.budget_bytes = budget});
  const auto delta = ValueOrDie(store->Register("delta", Path("delta"), {}));
  ASSERT_TRUE(WaitFor(*delta).granted());
  ExpectRefusal(StatusOf(store->Register("one", Path("one"), {})), StatusCode::kResourceExhausted,
                {"\"one\"", "the budget for variants is"});
  EXPECT_TRUE(WaitFor(*delta).granted()) << "nothing that has a name is shut out by it";
  DF_EXPECT_OK(store->Retire("delta", ""));
  ValueOrDie(store->Register("one", Path("one"), {}));
  EXPECT_EQ(store->Stats().reserved_bytes, tokenizer_bytes) << "what was there has made room";
}

}  // namespace
}  // namespace df
