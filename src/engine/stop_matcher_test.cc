#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

#include <chrono>
#include <optional>

#include "base/rng.h"
#include "engine/session.h"

namespace df {
namespace {

struct Shown {
  std::string text;
  int32_t match = -1;
  bool operator==(const Shown&) const = default;
};

Shown ShownOf(StopMatcher matcher, const std::vector<std::string>& pieces) {
  Shown shown;
  for (const std::string& piece : pieces) {
    StopMatcher::Found found = matcher.Feed(piece, true);
    shown.text += found.released;
    if (found.match >= 0) {
      shown.match = found.match;
      return shown;
    }
  }
  shown.text += matcher.Flush();
  return shown;
}

StopMatcher Matcher(const std::vector<std::string>& stops) { return *StopMatcher::Create(stops); }

// The definition, read off the whole text: first end, then longest.
Shown Oracle(const std::vector<std::string>& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<size_t> best;
    for (size_t i = 0; i < stops.size(); ++i) {
      const bool ends_here = text.substr(0, end).ends_with(stops[i]);
      if (ends_here && (!best || stops[i].size() > stops[*best].size())) best = i;
    }
    if (best) return {.text = text.substr(0, end - stops[*best].size()), .match = static_cast<int32_t>(*best)};
  }
  return {.text = text};
}

TEST(StopMatcher, ShowsTheTextBeforeTheStopString) {
  EXPECT_EQ(ShownOf(Matcher({"END"}), {"one two END three"}), (Shown{.text = "one two ", .match = 0}));
}

TEST(StopMatcher, FindsAStringSplitOverPieces) {
  EXPECT_EQ(ShownOf(Matcher({"###"}), {"a#", "#", "#b"}), (Shown{.text = "a", .match = 0}));
}

TEST(StopMatcher, HoldsBackOnlyWhatCouldBecomeAStopString) {
  StopMatcher matcher = Matcher({"abcd"});
  EXPECT_EQ(matcher.Feed("xab", true).released, "x");
  EXPECT_EQ(matcher.Feed("ca", true).released, "abc");
  EXPECT_EQ(matcher.Feed("z", true).released, "az");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcher, FlushesWhatWasHeldBackAtTheEnd) {
  EXPECT_EQ(ShownOf(Matcher({"abcd"}), {"xyzabc"}), (Shown{.text = "xyzabc"}));
}

TEST(StopMatcher, TakesTheStringThatIsCompleteFirstAndThenTheLongest) {
  EXPECT_EQ(ShownOf(Matcher({"abcd", "bc"}), {"abcd"}), (Shown{.text = "a", .match = 1}));
  EXPECT_EQ(ShownOf(Matcher({"c", "abc"}), {"xabc"}), (Shown{.text = "x", .match = 1}));
}

TEST(StopMatcher, NeverCutsACharacter) {
  // U+1F600 and U+1F601 share three bytes.
  StopMatcher matcher = Matcher({"\xF0\x9F\x98\x81!"});
  EXPECT_EQ(matcher.Feed("\xF0\x9F\x98\x80", true).released, "\xF0\x9F\x98\x80");
  EXPECT_EQ(matcher.Feed("\xF0\x9F\x98\x81", true).released, "");
  EXPECT_EQ(matcher.Feed("?", true).released, "\xF0\x9F\x98\x81?");
}

TEST(StopMatcher, LetsStringsPassWhileNotArmed) {
  StopMatcher matcher = Matcher({"ab"});
  EXPECT_EQ(matcher.Feed("xab", false).match, -1);
  EXPECT_EQ(matcher.Feed("y", true).released, "y");
  EXPECT_EQ(matcher.Feed("ab", true).match, 0);
}

TEST(StopMatcher, RefusesAnEmptyStringAndTooManyBytes) {
  EXPECT_EQ(StopMatcher::Create({"a", ""}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(StopMatcher::Create({std::string(kMaxStopBytes + 1, 'a')}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(StopMatcher::Create({std::string(kMaxStopBytes, 'a')}).ok());
}

TEST(StopMatcher, AgreesWithItsDefinitionHoweverTheTextIsCut) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    uint64_t k = 0;
    const auto draw = [&](uint64_t below) { return RandomBits(seed, k++) % below; };
    std::vector<std::string> stops(1 + draw(5));
    for (std::string& stop : stops) {
      for (uint64_t n = 1 + draw(5); n > 0; --n) stop += static_cast<char>('a' + draw(3));
    }
    std::vector<std::string> pieces(draw(12));
    std::string text;
    for (std::string& piece : pieces) {
      for (uint64_t n = draw(4); n > 0; --n) piece += static_cast<char>('a' + draw(3));
      text += piece;
    }
    EXPECT_EQ(ShownOf(Matcher(stops), pieces).text, Oracle(stops, text).text) << "seed " << seed << " text " << text;
  }
}

TEST(StopMatcher, IsLinearInTheTextForTenThousandStrings) {
  std::vector<std::string> stops;
  for (int i = 0; i < 10'000; ++i) stops.push_back(std::string("aaa") + std::to_string(i % 1000));
  StopMatcher matcher = Matcher(stops);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 1'000'000; ++i) ASSERT_LT(matcher.Feed("a", true).match, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

}  // namespace
}  // namespace df
