#include "server/openai_types.h"

#include <gtest/gtest.h>

#include "server/auth.h"

namespace df::server {
namespace {

constexpr std::string_view kMessages = R"("messages":[{"role":"user","content":"hi"}])";

std::optional<ApiError> ReadChat(const std::string& text, ChatRequest* out = nullptr) {
  ChatRequest request;
  auto error = ParseChatRequest(text, request);
  if (out != nullptr) *out = std::move(request);
  return error;
}

std::optional<ApiError> ReadChatWith(const std::string& field) {
  return ReadChat(R"({"model":"m",)" + std::string(kMessages) + "," + field + "}");
}

std::optional<ApiError> ReadCompletion(const std::string& fields, CompletionRequest* out = nullptr) {
  CompletionRequest request;
  auto error = ParseCompletionRequest(R"({"model":"m",)" + fields + "}", request);
  if (out != nullptr) *out = std::move(request);
  return error;
}

std::string NameOf(const std::string& field) { return field.substr(1, field.find('"', 1) - 1); }

TEST(ChatRequest, ReadsEveryFieldThatIsBuilt) {
  ChatRequest request;
  const auto error = ReadChat(
      R"({"model":"m","messages":[{"role":"developer","content":"be brief"},
          {"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}],"name":"Ann"}],
          "temperature":0.5,"top_p":0.9,"top_k":40,"max_tokens":7,"max_completion_tokens":9,"seed":-3,"min_tokens":2,
          "stop":["x","y"],"stop_token_ids":[1,2],"include_stop_str_in_output":true,"ignore_eos":true,
          "skip_special_tokens":false,"stream":true,"stream_options":{"include_usage":true},
          "add_generation_prompt":false,"chat_template_kwargs":{"enable_thinking":false},
          "user":"u","some_future_field":{"a":1}})",
      &request);
  ASSERT_FALSE(error) << error->message;
  EXPECT_EQ(request.fields.max_tokens, 9);
  EXPECT_EQ(request.fields.seed, -3);
  EXPECT_EQ(request.fields.stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(request.fields.stop_token_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_TRUE(request.fields.stream && request.fields.include_usage && request.fields.ignore_eos);
  EXPECT_FALSE(request.fields.skip_special_tokens || request.add_generation_prompt);
  EXPECT_EQ(DumpJson(request.messages),
            R"([{"role":"system","content":"be brief"},{"role":"user","content":"a\nb","name":"Ann"}])");
  const SamplingParams params = ToSamplingParams(request.fields, {});
  EXPECT_EQ(params.top_k, 40);
  EXPECT_EQ(params.max_tokens, 9U);
  EXPECT_DOUBLE_EQ(params.temperature, 0.5);
}

TEST(ChatRequest, KeepsTheVariantsDefaultsWhereItSaysNothing) {
  ChatRequest request;
  ASSERT_FALSE(ReadChat(R"({"model":"m",)" + std::string(kMessages) + "}", &request));
  SamplingParams defaults;
  defaults.temperature = 0.25;
  defaults.top_k = 5;
  const SamplingParams params = ToSamplingParams(request.fields, defaults);
  EXPECT_DOUBLE_EQ(params.temperature, 0.25);
  EXPECT_EQ(params.top_k, 5);
  EXPECT_FALSE(params.max_tokens);
  EXPECT_FALSE(params.seed);
}

TEST(ChatRequest, RefusesWrongValuesNamingTheField) {
  for (const std::string field : {
           R"("max_tokens":-1)",
           R"("max_tokens":0)",
           R"("max_tokens":2147483648)",
           R"("max_tokens":"5")",
           R"("max_tokens":1.5)",
           R"("max_tokens":1e3)",
           R"("max_completion_tokens":9223372036854775808)",
           R"("temperature":-1)",
           R"("temperature":2.1)",
           R"("temperature":"hot")",
           R"("temperature":true)",
           R"("top_p":0)",
           R"("top_p":2)",
           R"("top_k":-2)",
           R"("top_k":1.5)",
           R"("seed":1.5)",
           R"("seed":18446744073709551615)",
           R"("stop":[""])",
           R"("stop":"")",
           R"("stop":[1])",
           R"("stop":{})",
           R"("stop_token_ids":[-1])",
           R"("stop_token_ids":[1.5])",
           R"("stop_token_ids":[4294967296])",
           R"("stop_token_ids":7)",
           R"("stream":1)",
           R"("stream_options":{"include_usage":true})",
           R"("presence_penalty":1e30)",
           R"("frequency_penalty":"x")",
           R"("min_tokens":-1)",
           R"("n":0)",
           R"("n":"1")",
           R"("n":1.5)",
           R"("top_logprobs":1000000)",
           R"("top_logprobs":3)",
           R"("top_logprobs":3,"logprobs":false)",
           R"("top_logprobs":-1,"logprobs":true)",
           R"("top_logprobs":1.5,"logprobs":true)",
           R"("top_logprobs":"5","logprobs":true)",
           R"("top_logprobs":true,"logprobs":true)",
           R"("top_logprobs":4294967296,"logprobs":true)",
           R"("logprobs":1)",
           R"("logprobs":"true")",
           R"("chat_template_kwargs":[])",
           R"("ignore_eos":"yes")",
           R"("min_p":-0.1)",
       }) {
    const auto error = ReadChatWith(field);
    ASSERT_TRUE(error) << field;
    EXPECT_EQ(error->status, 400) << field;
    EXPECT_EQ(error->param, NameOf(field));
    EXPECT_EQ(error->code, "invalid_value") << field;
    EXPECT_NE(error->message.find(NameOf(field)), std::string::npos);
  }
}

TEST(ChatRequest, RefusesFeaturesThatAreNotBuiltNamingTheField) {
  for (const std::string field : {
           R"("tools":[{"type":"function","function":{"name":"f"}}])",
           R"("tool_choice":"required")",
           R"("functions":[{"name":"f"}])",
           R"("response_format":{"type":"json_object"})",
           R"("n":2)",
           R"("n":1000000000)",
           R"("logit_bias":{"50256":-100})",
           R"("presence_penalty":0.5)",
           R"("frequency_penalty":-0.5)",
           R"("repetition_penalty":1.1)",
           R"("min_p":0.05)",
           R"("typical_p":0.9)",
           R"("guided_json":{})",
           R"("guided_regex":"a+")",
           R"("guided_choice":["a"])",
           R"("guided_grammar":"x")",
           R"("structured_outputs":{"json":{}})",
           R"("best_of":2)",
           R"("bad_words":["x"])",
           R"("allowed_token_ids":[1])",
           R"("continue_final_message":true)",
           R"("chat_template":"{{ x }}")",
           R"("audio":{"voice":"a"})",
           R"("modalities":["audio"])",
           R"("use_beam_search":true)",
           R"("return_token_ids":true)",
           R"("priority":5)",
           R"("reasoning_effort":"high")",
       }) {
    const auto error = ReadChatWith(field);
    ASSERT_TRUE(error) << field;
    EXPECT_EQ(error->code, "unsupported_parameter") << field;
    EXPECT_EQ(error->param, NameOf(field));
    EXPECT_EQ(error->status, 400);
  }
}

TEST(ChatRequest, AcceptsThoseFieldsWhenTheyAskForNothing) {
  for (const std::string field : {
           R"("tools":[])",
           R"("tools":null)",
           R"("tool_choice":"auto")",
           R"("tool_choice":"none")",
           R"("response_format":{"type":"text"})",
           R"("n":1)",
           R"("logprobs":false)",
           R"("logprobs":null)",
           R"("top_logprobs":0)",
           R"("logit_bias":{})",
           R"("presence_penalty":0)",
           R"("frequency_penalty":0.0)",
           R"("repetition_penalty":1.0)",
           R"("min_p":0)",
           R"("bad_words":[])",
           R"("best_of":1)",
           R"("parallel_tool_calls":true)",
           R"("store":false)",
           R"("modalities":["text"])",
           R"("stop":[])",
           R"("stop":null)",
           R"("max_tokens":null)",
           R"("temperature":0)",
           R"("stream_options":null)",
           R"("metadata":{"a":"b"})",
           R"("cache_salt":"s")",
       }) {
    const auto error = ReadChatWith(field);
    EXPECT_FALSE(error) << field << ": " << error->message;
  }
}

TEST(ChatRequest, RefusesWhatIsNoConversation) {
  for (const std::string messages :
       {"null", "[]", "{}", "\"hi\"", "[1]", "[{}]", R"([{"role":"user"}])", R"([{"content":"a"}])",
        R"([{"role":"wizard","content":"a"}])", R"([{"role":1,"content":"a"}])", R"([{"role":"user","content":1}])",
        R"([{"role":"user","content":null}])", R"([{"role":"user","content":[]}])",
        R"([{"role":"user","content":["a"]}])", R"([{"role":"user","content":[{"type":"text"}]}])",
        R"([{"role":"user","content":"a","name":3}])"}) {
    const auto error = ReadChat(R"({"model":"m","messages":)" + messages + "}");
    ASSERT_TRUE(error) << messages;
    EXPECT_EQ(error->code, "invalid_value") << messages;
    EXPECT_TRUE(error->param.starts_with("messages")) << error->param;
  }
}

TEST(ChatRequest, RefusesImagesAndToolResultsWithTheirPlace) {
  const auto image = ReadChat(
      R"({"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://a"}}]}]})");
  ASSERT_TRUE(image);
  EXPECT_EQ(image->param, "messages[0].content[0]");
  EXPECT_EQ(image->code, "unsupported_parameter");
  const auto tool = ReadChat(R"({"model":"m","messages":[{"role":"tool","content":"x","tool_call_id":"1"}]})");
  ASSERT_TRUE(tool);
  EXPECT_EQ(tool->param, "messages[0].role");
  const auto calls = ReadChat(R"({"model":"m","messages":[{"role":"assistant","content":"","tool_calls":[{}]}]})");
  ASSERT_TRUE(calls);
  EXPECT_EQ(calls->param, "messages[0].tool_calls");
}

TEST(ChatRequest, RefusesTooManyAndTooLongStopStrings) {
  std::string many = R"("stop":["a")";
  for (int i = 0; i < 10000; ++i) many += R"(,"a")";
  EXPECT_TRUE(ReadChatWith(many + "]"));
  EXPECT_TRUE(ReadChatWith(R"("stop":")" + std::string(1 << 20, 'a') + "\""));
}

// {"model":"m","messages":[...n of them...]}
std::string ManyMessages(size_t n) {
  std::string text = R"({"model":"m","messages":[{"role":"user","content":""})";
  for (size_t i = 1; i < n; ++i) text += R"(,{"role":"user","content":""})";
  return text + "]}";
}

TEST(ChatRequest, TakesAtMost16384Messages) {
  ChatRequest request;
  ASSERT_FALSE(ReadChat(ManyMessages(16384), &request));
  EXPECT_EQ(request.messages.size(), 16384U);
  const auto error = ReadChat(ManyMessages(16385));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->param, "messages");
  EXPECT_NE(error->message.find("16384"), std::string::npos);
}

TEST(ChatRequest, TakesAtMost64KiBOfTemplateKwargs) {
  const std::string frame = R"({"a":""})";
  const auto kwargs = [&](size_t n_bytes) {
    return R"("chat_template_kwargs":{"a":")" + std::string(n_bytes - frame.size(), 'x') + "\"}";
  };
  EXPECT_FALSE(ReadChatWith(kwargs(65536)));
  const auto error = ReadChatWith(kwargs(65537));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->param, "chat_template_kwargs");
  EXPECT_NE(error->message.find("65536"), std::string::npos);
}

TEST(Body, TakesAtMost500000KeysAndValues) {
  const auto ids = [](size_t n) {
    std::string text = R"("prompt":[1)";
    for (size_t i = 1; i < n; ++i) text += ",1";
    return text + "]";
  };
  // Beside them: the object, two keys, the name of the model, the array.
  EXPECT_FALSE(ReadCompletion(ids(499'995)));
  const auto error = ReadCompletion(ids(499'996));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, "invalid_json");
  EXPECT_NE(error->message.find("500000 keys and values"), std::string::npos);
}

TEST(Body, RefusesWhatIsNoJsonObject) {
  const std::string deep(100000, '[');
  for (const std::string& text :
       {std::string(), std::string("{"), std::string("[]"), std::string("1"), deep, std::string("\xEF\xBB\xBF{}"),
        std::string("{\"a\":\"\xff\"}"), std::string(R"({"a":1,"a":2})"), std::string(R"({"a":NaN})"),
        std::string(R"({"a":1e400})"), std::string(R"({"a":"\ud800"})"), std::string(R"({"a":1} x)"),
        std::string(1, '\0')}) {
    Json root;
    const auto error = ParseBody(text, root);
    ASSERT_TRUE(error) << text.substr(0, 40);
    EXPECT_EQ(error->code, "invalid_json");
    EXPECT_EQ(error->status, 400);
  }
}

TEST(CompletionRequest, ReadsAllFourFormsOfAPrompt) {
  CompletionRequest request;
  ASSERT_FALSE(ReadCompletion(R"("prompt":"a")", &request));
  EXPECT_EQ(request.prompts.size(), 1U);
  EXPECT_EQ(request.fields.max_tokens, 16);
  ASSERT_FALSE(ReadCompletion(R"("prompt":["a","b"])", &request));
  EXPECT_EQ(request.prompts.size(), 2U);
  ASSERT_FALSE(ReadCompletion(R"("prompt":[1,2,3])", &request));
  ASSERT_EQ(request.prompts.size(), 1U);
  EXPECT_EQ(std::get<std::vector<int32_t>>(request.prompts[0]), (std::vector<int32_t>{1, 2, 3}));
  ASSERT_FALSE(ReadCompletion(R"("prompt":[[1],[2,3]])", &request));
  EXPECT_EQ(request.prompts.size(), 2U);
}

TEST(CompletionRequest, RefusesWhatIsNoPrompt) {
  std::string many = R"("prompt":["a")";
  for (int i = 0; i < 200; ++i) many += R"(,"a")";
  for (const std::string& field :
       {std::string(R"("prompt":null)"), std::string(R"("prompt":"")"), std::string(R"("prompt":[])"),
        std::string(R"("prompt":[[]])"), std::string(R"("prompt":[1,"a"])"), std::string(R"("prompt":["a",1])"),
        std::string(R"("prompt":[-1])"), std::string(R"("prompt":[2147483648])"), std::string(R"("prompt":[1.5])"),
        std::string(R"("prompt":{})"), many + "]"}) {
    const auto error = ReadCompletion(field);
    ASSERT_TRUE(error) << field.substr(0, 60);
    EXPECT_TRUE(error->param.starts_with("prompt")) << error->param;
  }
}

TEST(ChatRequest, ReadsHowManyLogprobsAreWanted) {
  const auto wanted = [](const std::string& field) {
    ChatRequest request;
    const auto error = ReadChat(R"({"model":"m",)" + std::string(kMessages) + "," + field + "}", &request);
    EXPECT_FALSE(error) << field;
    return request.fields.logprobs;
  };
  EXPECT_EQ(wanted(R"("logprobs":true)"), 0);
  EXPECT_EQ(wanted(R"("logprobs":true,"top_logprobs":null)"), 0);
  EXPECT_EQ(wanted(R"("logprobs":true,"top_logprobs":7)"), 7);
  EXPECT_EQ(wanted(R"("logprobs":false,"top_logprobs":0)"), std::nullopt);
  EXPECT_EQ(wanted(R"("top_logprobs":0)"), std::nullopt);
}

TEST(CompletionRequest, ReadsEchoLogprobsAndZeroTokens) {
  CompletionRequest request;
  ASSERT_FALSE(ReadCompletion(
      R"("prompt":[[1,2],[3]],"temperature":0,"max_tokens":0,"logprobs":1,"seed":1234,"echo":true)", &request));
  EXPECT_TRUE(request.echo);
  EXPECT_EQ(request.fields.logprobs, 1);
  EXPECT_EQ(request.fields.max_tokens, 0);
  EXPECT_EQ(request.prompts.size(), 2U);
  EXPECT_EQ(ToSamplingParams(request.fields, {}).logprobs, 1U);
}

TEST(CompletionRequest, RefusesWhatIsNoCountOfLogprobsAndNoEcho) {
  for (const std::string field :
       {R"("logprobs":true)", R"("logprobs":false)", R"("logprobs":-1)", R"("logprobs":1.5)", R"("logprobs":"1")",
        R"("logprobs":1e10)", R"("logprobs":[])", R"("echo":1)", R"("echo":"yes")", R"("max_tokens":0)",
        R"("max_tokens":0,"echo":false)", R"("max_tokens":-1,"echo":true)", R"("max_completion_tokens":0)",
        R"("min_tokens":1,"max_tokens":0,"echo":true)"}) {
    const auto error = ReadCompletion(R"("prompt":"a",)" + field);
    ASSERT_TRUE(error) << field;
    EXPECT_EQ(error->param, NameOf(field)) << field;
    EXPECT_EQ(error->code, "invalid_value") << field;
  }
}

TEST(CompletionRequest, RefusesSuffixAndSeveralCandidates) {
  for (const std::string field : {R"("suffix":"x")", R"("prompt_logprobs":1)", R"("best_of":3)"}) {
    const auto error = ReadCompletion(R"("prompt":"a",)" + field);
    ASSERT_TRUE(error) << field;
    EXPECT_EQ(error->param, NameOf(field));
    EXPECT_EQ(error->code, "unsupported_parameter");
  }
  EXPECT_FALSE(ReadCompletion(R"("prompt":"a","echo":false,"suffix":null,"logprobs":null)"));
}

TEST(Auth, AcceptsAnyOfTheKeysAndNothingElse) {
  const std::vector<std::string> keys = {"secret", "other"};
  EXPECT_TRUE(IsAuthorized({}, ""));
  EXPECT_TRUE(IsAuthorized(keys, "Bearer secret"));
  EXPECT_TRUE(IsAuthorized(keys, "bearer other"));
  for (const char* wrong : {"", "Bearer", "Bearer ", "secret", "Bearer secre", "Bearer secretx", "Bearer secrex",
                            "Basic secret", "Bearer  secret", "Bearer secretsecret"}) {
    EXPECT_FALSE(IsAuthorized(keys, wrong)) << wrong;
  }
}

TEST(ErrorMap, HidesWhatOnlyTheLogShouldHave) {
  const ApiError error = FromStatus(IoError("/data/models/x", 2));
  EXPECT_EQ(error.status, 500);
  EXPECT_EQ(error.message.find("/data"), std::string::npos);
}

TEST(ErrorMap, AnswersEachKindOfFailureWithItsStatus) {
  EXPECT_EQ(FromStatus(InvalidArgument("x"), "prompt").status, 400);
  EXPECT_EQ(FromStatus(InvalidArgument("x"), "prompt").param, "prompt");
  EXPECT_EQ(FromStatus(NotFound("x")).status, 404);
  EXPECT_EQ(FromStatus(ResourceExhausted("x")).status, 429);
  EXPECT_EQ(FromStatus(Unavailable("x")).status, 503);
  EXPECT_EQ(FromStatus(DeadlineExceeded("x")).status, 504);
  const HttpResponse busy = ErrorResponse(FromStatus(ResourceExhausted("x")));
  EXPECT_EQ(busy.headers.at(0).first, "Retry-After");
}

}  // namespace
}  // namespace df::server
