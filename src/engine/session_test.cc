#include "engine/session.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "testing/tiny_family.h"

namespace df {
namespace {

using testing::ValueOrDie;

// Takes a request and leaves the tokens to the test.
class ScriptedEngine final : public Engine {
 public:
  Status Submit(GenerationRequest request) override {
    if (!refusal.ok()) return refusal;
    submitted = std::move(request);
    return Status::Ok();
  }
  void Wake() override {}
  void Cancel(const std::string& id) override { cancelled.push_back(id); }
  EngineStats Stats() const override { return {}; }
  const EngineOptions& options() const override { return options_; }
  const BaseWeights& base() const override { return base_; }
  bool Healthy() const override { return true; }

  void Say(std::string_view text) {
    for (const char c : text) SayToken(static_cast<unsigned char>(c));
  }
  void SayToken(int32_t token) {
    TokenEvent event;
    event.token = token;
    submitted.events->Push(event);
  }
  void End(FinishReason reason, int32_t token = -1, Status status = {}) {
    TokenEvent event;
    event.token = token;
    event.finish = reason;
    event.status = std::move(status);
    submitted.events->Push(event);
  }

  Status refusal;
  GenerationRequest submitted;
  std::vector<std::string> cancelled;

 private:
  EngineOptions options_{.max_model_len = 64};
  BaseWeights base_;
};

class Session : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const testing::TemporaryDirectory directory("deltafold-session-test");
    std::filesystem::create_directories(directory / "model");
    testing::WriteTinyText(directory / "model");
    auto variant = std::make_shared<Variant>();
    variant->name = "tiny";
    variant->text = std::make_shared<const ModelText>(ValueOrDie(LoadModelText(directory / "model")));
    variant->eos_ids = {testing::kTinyEos};
    variant->max_model_len = 48;
    variant_ = std::move(variant);
  }
  static void TearDownTestSuite() { variant_.reset(); }

  TextRequest Request(std::string prompt = "hello") const {
    TextRequest request;
    request.id = "r";
    request.variant = variant_;
    request.prompt = std::move(prompt);
    return request;
  }

  std::unique_ptr<TextStream> Start(TextRequest request) {
    return ValueOrDie(StartText(engine_, std::move(request), {}));
  }

  ScriptedEngine engine_;
  static inline std::shared_ptr<const Variant> variant_;
};

struct Collected {
  std::string text;
  std::vector<int32_t> tokens;
  std::optional<FinishReason> finish;
  std::optional<std::string> stop_reason;
  Status status;
};

void Collect(TextStream& stream, Collected& into) {
  for (const TextDelta& delta : stream.TakeAll()) {
    EXPECT_FALSE(into.finish) << "a delta after the last one";
    EXPECT_TRUE(delta.finish || !delta.text.empty()) << "an empty delta that is not the last";
    into.text += delta.text;
    into.tokens.insert(into.tokens.end(), delta.tokens.begin(), delta.tokens.end());
    into.finish = delta.finish;
    into.stop_reason = delta.stop_reason;
    into.status = delta.status;
  }
}

Collected CollectAll(TextStream& stream) {
  Collected collected;
  Collect(stream, collected);
  return collected;
}

TEST_F(Session, StreamsTextAndEndsAtTheStopTokenWithoutShowingIt) {
  const auto stream = Start(Request());
  engine_.Say("hi");
  EXPECT_EQ(CollectAll(*stream).text, "hi");
  engine_.End(FinishReason::kStop, testing::kTinyEos);
  const Collected end = CollectAll(*stream);
  EXPECT_EQ(end.text, "");
  EXPECT_EQ(end.finish, FinishReason::kStop);
  EXPECT_FALSE(end.stop_reason.has_value());
  EXPECT_EQ(stream->usage().prompt_tokens, 5u);
  EXPECT_EQ(stream->usage().completion_tokens, 3u);
  EXPECT_TRUE(engine_.cancelled.empty());
}

TEST_F(Session, ShowsTheStopTokenWhenAskedTo) {
  TextRequest request = Request();
  request.include_stop_str_in_output = true;
  request.skip_special_tokens = false;
  const auto stream = Start(std::move(request));
  engine_.Say("x");
  engine_.End(FinishReason::kStop, testing::kTinyEos);
  EXPECT_EQ(CollectAll(*stream).text, "x<eos>");
}

TEST_F(Session, HoldsBackAnUnfinishedCharacter) {
  const auto stream = Start(Request());
  engine_.Say("a\xC3");
  EXPECT_EQ(CollectAll(*stream).text, "a");
  engine_.Say("\xA9");
  const Collected rest = CollectAll(*stream);
  EXPECT_EQ(rest.text, "\xC3\xA9");
  EXPECT_EQ(rest.tokens, (std::vector<int32_t>{0xC3, 0xA9}));
}

TEST_F(Session, EndsBeforeAStopStringAndStopsTheEngine) {
  TextRequest request = Request();
  request.stop = {"###", "\xC3\xA9!"};
  const auto stream = Start(std::move(request));
  engine_.Say("caf\xC3\xA9 \xC3\xA9");
  EXPECT_EQ(CollectAll(*stream).text, "caf\xC3\xA9 ");
  engine_.Say("!and more that the engine made meanwhile");
  engine_.End(FinishReason::kLength);
  const Collected end = CollectAll(*stream);
  EXPECT_EQ(end.text, "");
  EXPECT_EQ(end.finish, FinishReason::kStop);
  EXPECT_EQ(end.stop_reason, "\xC3\xA9!");
  EXPECT_EQ(engine_.cancelled, (std::vector<std::string>{"r"}));
  EXPECT_EQ(stream->usage().completion_tokens, 9u);
  EXPECT_TRUE(stream->TakeAllBlocking().empty());
}

TEST_F(Session, IncludesTheStopStringWhenAskedTo) {
  TextRequest request = Request();
  request.stop = {"END"};
  request.include_stop_str_in_output = true;
  const auto stream = Start(std::move(request));
  engine_.Say("the ENDING");
  EXPECT_EQ(CollectAll(*stream).text, "the END");
}

TEST_F(Session, GivesOutWhatItHeldBackWhenTheAnswerEnds) {
  TextRequest request = Request();
  request.stop = {"abcd"};
  const auto stream = Start(std::move(request));
  engine_.Say("xabc\xE2\x82");
  engine_.End(FinishReason::kLength, 'z');
  const Collected end = CollectAll(*stream);
  EXPECT_EQ(end.text, "xabc\xEF\xBF\xBDz");
  EXPECT_EQ(end.finish, FinishReason::kLength);
}

TEST_F(Session, LooksForStopStringsOnlyAfterMinTokens) {
  TextRequest request = Request();
  request.stop = {"b"};
  request.params.min_tokens = 2;
  const auto stream = Start(std::move(request));
  engine_.Say("abab");
  const Collected end = CollectAll(*stream);
  EXPECT_EQ(end.text, "aba");
  EXPECT_EQ(end.stop_reason, "b");
}

TEST_F(Session, PassesErrorsOn) {
  const auto stream = Start(Request());
  engine_.Say("x");
  engine_.End(FinishReason::kError, -1, Internal("non-finite logits"));
  const Collected end = CollectAll(*stream);
  EXPECT_EQ(end.text, "x");
  EXPECT_EQ(end.finish, FinishReason::kError);
  EXPECT_EQ(end.status.message(), "non-finite logits");
}

TEST_F(Session, CancelsWhatItsClientGaveUp) {
  Start(Request()).reset();
  EXPECT_EQ(engine_.cancelled, (std::vector<std::string>{"r"}));
  auto ended = Start(Request());
  engine_.End(FinishReason::kLength, 'a');
  CollectAll(*ended);
  ended.reset();
  EXPECT_EQ(engine_.cancelled.size(), 1u) << "what has ended needs no cancelling";
}

TEST_F(Session, StreamedTextEqualsTheWholeTextHoweverItArrives) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::vector<int32_t> tokens;
    for (uint64_t i = 0; i < 60; ++i) {
      // Lead bytes and continuations in about equal parts: whole, broken and unfinished characters.
      tokens.push_back(static_cast<int32_t>(RandomBits(seed, i) % 2 == 0 ? 0x80 + RandomBits(seed, i + 999) % 0x80
                                                                         : RandomBits(seed, i + 999) % 256));
    }
    const auto stream = Start(Request());
    Collected collected;
    for (size_t i = 0; i < tokens.size(); ++i) {
      engine_.SayToken(tokens[i]);
      if (RandomBits(seed, i + 5000) % 3 == 0) Collect(*stream, collected);
    }
    engine_.End(FinishReason::kLength);
    Collect(*stream, collected);
    EXPECT_EQ(collected.text, ValueOrDie(variant_->text->tokenizer->Decode(tokens)));
    EXPECT_EQ(collected.tokens, tokens);
  }
}

// What the engine knows of a token, with the likeliest one beside it.
std::vector<kernels::TokenLogprob> Known(int32_t token, float logprob, int32_t likeliest) {
  return {{.token = token, .logprob = logprob}, {.token = likeliest, .logprob = -0.5F}};
}

TEST_F(Session, EchoesThePromptBeforeTheAnswerWithItsLogprobs) {
  TextRequest request = Request("abc");
  request.echo = true;
  request.prompt_text = "ABC";  // as it was written, whatever the tokenizer makes of it
  request.params.logprobs = request.params.prompt_logprobs = 1;
  const auto stream = Start(std::move(request));
  EXPECT_EQ(engine_.submitted.params.prompt_logprobs, 1u);
  EXPECT_TRUE(stream->TakeAll().empty()) << "nothing goes out before the engine has begun";

  TokenEvent prompt;
  prompt.n_prompt = 2;
  prompt.logprobs = Known('b', -1.0F, 'x');
  for (const kernels::TokenLogprob& one : Known('c', -2.0F, 0xC3)) prompt.logprobs.push_back(one);
  engine_.submitted.events->Push(prompt);
  std::vector<TextDelta> deltas = stream->TakeAll();
  ASSERT_EQ(deltas.size(), 1u);
  EXPECT_EQ(deltas[0].text, "ABC");
  EXPECT_TRUE(deltas[0].tokens.empty());
  ASSERT_EQ(deltas[0].logprobs.size(), 3u);
  EXPECT_EQ(deltas[0].logprobs[0].token.bytes, "a");
  EXPECT_FALSE(deltas[0].logprobs[0].token.logprob.has_value());
  EXPECT_EQ(deltas[0].logprobs[1].token.logprob, -1.0F);
  EXPECT_EQ(deltas[0].logprobs[2].top[0].bytes, "\xC3");

  // Of tokens whose text is held back, the log-probabilities come with the text.
  for (const int32_t token : {0xC3, 0xA9}) {
    TokenEvent event;
    event.token = token;
    event.logprobs = Known(token, -0.25F, 'y');
    engine_.submitted.events->Push(event);
  }
  TokenEvent end;
  end.token = testing::kTinyEos;
  end.logprobs = Known(end.token, -0.75F, 'z');
  end.finish = FinishReason::kStop;
  engine_.submitted.events->Push(end);
  deltas = stream->TakeAll();
  ASSERT_EQ(deltas.size(), 2u);
  EXPECT_EQ(deltas[0].text, "\xC3\xA9");
  EXPECT_EQ(deltas[0].logprobs.size(), 2u);
  ASSERT_EQ(deltas[1].logprobs.size(), 1u) << "the stop token has no text, but was drawn";
  EXPECT_EQ(deltas[1].logprobs[0].token.bytes, "<eos>");
  EXPECT_EQ(deltas[1].logprobs[0].token.logprob, -0.75F);
}

TEST_F(Session, EchoesTokenIdsAsTheirText) {
  TextRequest request = Request();
  request.prompt = std::vector<int32_t>{256, 'h', 'i'};
  request.echo = true;
  request.params.max_tokens = 0;
  const auto stream = Start(std::move(request));
  engine_.End(FinishReason::kLength);
  const Collected end = CollectAll(*stream);
  EXPECT_EQ(end.text, "<bos>hi");
  EXPECT_EQ(end.finish, FinishReason::kLength);
  EXPECT_EQ(stream->usage().completion_tokens, 0u);
}

TEST_F(Session, ShowsNothingOfAPromptThatFails) {
  TextRequest request = Request();
  request.echo = true;
  request.prompt_text = "hello";
  request.params.prompt_logprobs = 0;
  const auto stream = Start(std::move(request));
  engine_.End(FinishReason::kError, -1, Internal("non-finite logits"));
  const Collected end = CollectAll(*stream);
  EXPECT_EQ(end.text, "");
  EXPECT_EQ(end.finish, FinishReason::kError);
}

TEST_F(Session, StopStringsAreNotLookedForInAnEcho) {
  TextRequest request = Request("a stop");
  request.echo = true;
  request.prompt_text = "a stop";
  request.stop = {"stop"};
  const auto stream = Start(std::move(request));
  engine_.Say("st");
  engine_.Say("art");
  engine_.End(FinishReason::kLength);
  EXPECT_EQ(CollectAll(*stream).text, "a stopstart");
}

TEST_F(Session, RendersMessagesByTheTemplateOfTheVariant) {
  TextRequest request = Request();
  Json message = {{"role", "user"}, {"content", "a<eos>"}};
  request.prompt = Json::array({message});
  const auto stream = Start(std::move(request));
  std::vector<int32_t> expected = {256, 258, 'a'};
  for (const char c : std::string("<eos>")) expected.push_back(c);  // text of a user stays text
  expected.push_back(259);
  EXPECT_EQ(stream->prompt(), expected);
  EXPECT_EQ(engine_.submitted.prompt, expected);
  EXPECT_EQ(engine_.submitted.eos_ids, (std::vector<int32_t>{testing::kTinyEos}));
}

TEST_F(Session, ReadsControlTokensInPlainTextUnlessToldNotTo) {
  EXPECT_EQ(Start(Request("<bos>x"))->prompt(), (std::vector<int32_t>{256, 'x'}));
  TextRequest request = Request("<bos>");
  request.parse_special_tokens = false;
  EXPECT_EQ(Start(std::move(request))->prompt(), (std::vector<int32_t>{'<', 'b', 'o', 's', '>'}));
}

TEST_F(Session, RefusesTextThatCannotFitBeforeTokenisingIt) {
  const auto start = std::chrono::steady_clock::now();
  const Status refused = testing::StatusOf(StartText(engine_, Request(std::string(12'000'000, 'a')), {}));
  EXPECT_TRUE(IsContextLengthExceeded(refused)) << refused.message();
  TextRequest chat = Request();
  Json message = {{"role", "user"}, {"content", std::string(12'000'000, 'a')}};
  chat.prompt = Json::array({message});
  const Status chat_refused = testing::StatusOf(StartText(engine_, std::move(chat), {}));
  EXPECT_TRUE(IsContextLengthExceeded(chat_refused)) << chat_refused.message();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST_F(Session, PassesRefusalsOn) {
  engine_.refusal = ResourceExhausted("the queue is full");
  EXPECT_EQ(StartText(engine_, Request(), {}).status().code(), StatusCode::kResourceExhausted);
  EXPECT_TRUE(engine_.cancelled.empty());
  TextRequest request = Request();
  request.stop = {""};
  EXPECT_EQ(StartText(engine_, std::move(request), {}).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(Session, WakesItsClientUntilItIsGone) {
  size_t n_woken = 0;
  auto stream = ValueOrDie(StartText(engine_, Request(), [&] { ++n_woken; }));
  engine_.Say("ab");
  EXPECT_EQ(n_woken, 2u);
  stream.reset();
  engine_.Say("c");
  EXPECT_EQ(n_woken, 2u);
}

TEST_F(Session, TheContextIsTheShorterOfEngineAndVariant) { EXPECT_EQ(ContextLength(engine_, *variant_), 48u); }

}  // namespace
}  // namespace df
