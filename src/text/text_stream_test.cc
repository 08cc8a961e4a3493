#include "text/text_stream.h"

#include <gtest/gtest.h>

#include <ctime>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/utf8.h"
#include "text/text_fixture.h"

namespace df {
namespace {

using testing::kTestTokenizers;
using testing::LoadTestTokenizer;
using testing::ReadJsonData;
using testing::ReadTextData;
using testing::ValueOrDie;
using Ids = std::vector<int32_t>;

class Random {
 public:
  explicit Random(uint64_t seed) : seed_(seed) {}
  uint64_t Below(uint64_t end) { return RandomBits(seed_, k_++) % end; }

 private:
  uint64_t seed_;
  uint64_t k_ = 0;
};

// All pieces together, each checked to be whole characters.
std::string Streamed(DecodeStream& stream, const Ids& ids) {
  std::string text;
  for (const int32_t id : ids) {
    const std::string piece = ValueOrDie(stream.Push(id));
    EXPECT_TRUE(IsValidUtf8(piece)) << piece;
    text += piece;
  }
  return text + ValueOrDie(stream.Finish());
}

void ExpectStreamsLikeDecode(const std::shared_ptr<const Tokenizer>& tokenizer, const Ids& ids) {
  for (const bool skip : {false, true}) {
    DecodeStream stream(tokenizer, {.skip_special_tokens = skip});
    const std::string expected = ValueOrDie(tokenizer->Decode(ids, {.skip_special_tokens = skip}));
    EXPECT_EQ(Streamed(stream, ids), expected);
    EXPECT_EQ(Streamed(stream, ids), expected) << "after Finish the stream starts anew";
  }
}

TEST(DecodeStream, PiecesTogetherAreTheDecodedText) {
  for (const std::string name : kTestTokenizers) {
    const auto tokenizer = LoadTestTokenizer(name);
    const Json expected = ReadJsonData(name + ".expected.json");
    for (const Json& row : expected["decode"]) {
      SCOPED_TRACE(name + ": " + DumpJson(row["ids"]));
      ExpectStreamsLikeDecode(tokenizer, row["ids"].get<Ids>());
    }
  }
}

TEST(DecodeStream, RandomIdsStreamLikeTheyDecode) {
  Random rng(11);
  for (const std::string name : kTestTokenizers) {
    const auto tokenizer = LoadTestTokenizer(name);
    for (int n = 0; n < 200; ++n) {
      Ids ids;
      // Half of the sequences stay among the first ids, where byte tokens and single bytes are.
      const auto range = static_cast<uint64_t>(n % 2 == 0 ? tokenizer->vocab() : std::min(tokenizer->vocab(), 260));
      for (uint64_t i = 1 + rng.Below(40); i > 0; --i) ids.push_back(static_cast<int32_t>(rng.Below(range)));
      SCOPED_TRACE(name + ": " + DumpJson(Json(ids)));
      ExpectStreamsLikeDecode(tokenizer, ids);
    }
  }
}

TEST(DecodeStream, EveryDecoderStreamsLikeItDecodes) {
  const std::string decoders[] = {
      R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"always","split":true})",
      R"({"type":"Metaspace","replacement":"▁","prepend_scheme":"never","split":true})",
      R"({"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Metaspace","replacement":"▁",)"
      R"("prepend_scheme":"first","split":true}]})",
      R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},)"
      R"({"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":2,"stop":1}]})",
      R"({"type":"Sequence","decoders":[{"type":"ByteFallback"},{"type":"Fuse"},)"
      R"({"type":"Replace","pattern":{"Regex":"▁+e?"},"content":"+"}]})",
      R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":""}]})",
      R"({"type":"BPEDecoder","suffix":"e"})",
      R"({"type":"CTC","pad_token":"e","word_delimiter_token":"▁","cleanup":true})",
      R"({"type":"WordPiece","prefix":"▁","cleanup":true})",
      R"({"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true})",
  };
  Json file = ReadJsonData("llama2_like.json");
  Random rng(5);
  for (const std::string& decoder : decoders) {
    file["decoder"] = ValueOrDie(ParseJson(decoder));
    const auto tokenizer = ValueOrDie(Tokenizer::Parse(DumpJson(file)));
    for (int n = 0; n < 100; ++n) {
      Ids ids;
      const uint64_t first = n % 2 == 0 ? 0 : 250;
      const uint64_t range = static_cast<uint64_t>(tokenizer->vocab()) - first;
      for (uint64_t i = 1 + rng.Below(12); i > 0; --i) ids.push_back(static_cast<int32_t>(first + rng.Below(range)));
      SCOPED_TRACE(decoder + DumpJson(Json(ids)));
      // Strip with "stop" panics in the library on texts shorter than it; that is an error, not an answer.
      if (!tokenizer->Decode(ids, {.skip_special_tokens = false}).ok()) continue;
      if (!tokenizer->Decode(ids).ok()) continue;
      ExpectStreamsLikeDecode(tokenizer, ids);
    }
  }
}

TEST(DecodeStream, HoldsBackOnlyUnfinishedCharacters) {
  const auto tokenizer = LoadTestTokenizer("qwen_like");
  const Ids ids = ValueOrDie(tokenizer->Encode("a👩b"));
  DecodeStream stream(tokenizer);
  std::vector<std::string> pieces;
  for (const int32_t id : ids) pieces.push_back(ValueOrDie(stream.Push(id)));
  ASSERT_EQ(pieces.size(), 6u);
  EXPECT_EQ(pieces, (std::vector<std::string>{"a", "", "", "", "👩", "b"}));
}

TEST(DecodeStream, KeepsTheSpaceOfALaterWord) {
  const auto tokenizer = LoadTestTokenizer("llama2_like");
  const int32_t space = tokenizer->IdOrNull("▁").value_or(-1);
  const int32_t letter = tokenizer->IdOrNull("a").value_or(-1);
  DecodeStream stream(tokenizer);
  EXPECT_EQ(ValueOrDie(stream.Push(space)), "");
  EXPECT_EQ(ValueOrDie(stream.Push(letter)), "a");
  EXPECT_EQ(ValueOrDie(stream.Push(space)), " ");
  EXPECT_EQ(ValueOrDie(stream.Push(letter)), "a");
}

TEST(DecodeStream, WorkPerTokenStaysTheSame) {
  for (const std::string name : {"qwen_like", "llama2_like", "odd_added_tokens"}) {
    const auto tokenizer = LoadTestTokenizer(name);
    for (const char* token : {"▁", "a", "<0x41>", "Ġ"}) {
      const std::optional<int32_t> id = tokenizer->IdOrNull(token);
      if (!id) continue;
      DecodeStream stream(tokenizer);
      const std::clock_t start = std::clock();
      for (int i = 0; i < 50'000; ++i) (void)ValueOrDie(stream.Push(*id));
      (void)ValueOrDie(stream.Finish());
      // Decoding all so far at each step would be 10^9 tokens: minutes.
      EXPECT_LT(std::clock() - start, 10 * CLOCKS_PER_SEC) << name << token;
    }
  }
}

TEST(DecodeStream, ARefusedIdLeavesTheStreamAsItWas) {
  const auto tokenizer = LoadTestTokenizer("qwen_like");
  const Ids ids = ValueOrDie(tokenizer->Encode("é!"));
  DecodeStream stream(tokenizer);
  std::string text = ValueOrDie(stream.Push(ids[0]));
  EXPECT_EQ(stream.Push(-5).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(stream.Push(tokenizer->vocab()).status().code(), StatusCode::kInvalidArgument);
  for (size_t i = 1; i < ids.size(); ++i) text += ValueOrDie(stream.Push(ids[i]));
  DecodeStream moved = std::move(stream);
  EXPECT_EQ(text + ValueOrDie(moved.Finish()), "é!");
}

}  // namespace
}  // namespace df
