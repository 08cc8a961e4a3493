#include "tools/bench_serve.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/json.h"
#include "server/server_fixture.h"
#include "testing/refusal.h"
#include "testing/status_matchers.h"
#include "tools/sse_reader.h"

namespace df::tools {
namespace {

using testing::ExpectRefusal;
using testing::ValueOrDie;

std::vector<std::string> EventsOf(std::string_view stream, size_t piece_bytes) {
  SseReader reader;
  std::vector<std::string> events;
  for (size_t at = 0; at < stream.size(); at += piece_bytes)
    DF_EXPECT_OK(reader.Feed(stream.substr(at, piece_bytes), events));
  return events;
}

TEST(SseReader, FindsTheSameEventsHoweverTheStreamIsCut) {
  const std::string stream =
      ": a comment\n\ndata: one\n\nevent: x\ndata:two\ndata:  lines\r\n\r\nid: 7\n\ndata: [DONE]\n\ndata: unfinished\n";
  const std::vector<std::string> expected = {"one", "two\n lines", "[DONE]"};
  for (size_t piece_bytes = 1; piece_bytes <= stream.size(); ++piece_bytes) {
    EXPECT_EQ(EventsOf(stream, piece_bytes), expected) << piece_bytes;
  }
}

TEST(SseReader, RefusesAnEventWithoutEnd) {
  SseReader reader;
  std::vector<std::string> events;
  const std::string line(1000, 'x');
  Status status;
  for (size_t i = 0; i < 2000 && status.ok(); ++i) status = reader.Feed("data: " + line + "\n", events);
  ExpectRefusal(status, StatusCode::kResourceExhausted, {"1048576"});
  SseReader one_line;
  ExpectRefusal(one_line.Feed(std::string(SseReader::kMaxEventBytes + 1, 'x'), events), StatusCode::kResourceExhausted,
                {});
}

TEST(LoadClient, ReadsTheAddress) {
  const Endpoint plain = ValueOrDie(ParseEndpoint("http://localhost:8000"));
  EXPECT_EQ(plain.host + "|" + plain.port + "|" + plain.prefix, "localhost|8000|");
  const Endpoint with_path = ValueOrDie(ParseEndpoint("http://h/llm/v1/"));
  EXPECT_EQ(with_path.host + "|" + with_path.port + "|" + with_path.prefix, "h|80|/llm");
  EXPECT_EQ(ValueOrDie(ParseEndpoint("http://[::1]:81")).host, "::1");
  EXPECT_EQ(ValueOrDie(ParseEndpoint("http://[::1]:81")).port, "81");
  for (const char* bad : {"", "localhost:8000", "https://a", "http://", "http://:80", "http://a:", "http://a:b",
                          "http://a:123456", "http://a:65536", "http://[::1", "http://a/b c", "http://a/b\r\nX: y"}) {
    ExpectRefusal(ParseEndpoint(bad), StatusCode::kInvalidArgument, {"url"});
  }
}

TEST(ServeBench, ArrivesAtTheRateAskedFor) {
  const ServeBenchOptions options = {.rate = 5, .n_requests = 4000, .seed = 3};
  const std::vector<LoadRequest> requests = PlanLoad(options, {"a"}, 1, LoadRun::kTogether);
  EXPECT_EQ(requests.front().at_s, 0);
  // 3999 exponential gaps with mean 0.2 s: their sum has a standard deviation of 1.6 %.
  EXPECT_NEAR(requests.back().at_s, 3999 / 5.0, 3999 / 5.0 * 0.08);
  for (size_t i = 1; i < requests.size(); ++i) EXPECT_GE(requests[i].at_s, requests[i - 1].at_s);
  const std::vector<LoadRequest> at_once = PlanLoad({.n_requests = 10}, {"a"}, 1, LoadRun::kTogether);
  EXPECT_EQ(at_once.back().at_s, 0);
}

std::set<uint64_t> PromptSeeds(const std::vector<LoadRequest>& requests) {
  std::set<uint64_t> seeds;
  for (const LoadRequest& request : requests) seeds.insert(request.seed);
  return seeds;
}

TEST(ServeBench, NoPromptComesTwiceButArrivalsAndModelsDo) {
  const ServeBenchOptions options = {.rate = 5, .n_requests = 500, .seed = 3};
  const std::vector<std::string> models = {"a", "b", "c"};
  const std::vector<LoadRequest> first = PlanLoad(options, models, 1, LoadRun::kBaseAlone);
  std::set<uint64_t> seeds = PromptSeeds(first);
  EXPECT_EQ(seeds.size(), 500u);
  for (const auto& other :
       {PlanLoad(options, models, 1, LoadRun::kTogether), PlanLoad(options, models, 2, LoadRun::kBaseAlone)}) {
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_EQ(first[i].at_s, other[i].at_s);
      EXPECT_EQ(first[i].model, other[i].model);
    }
    seeds.merge(PromptSeeds(other));
  }
  EXPECT_EQ(seeds.size(), 1500u) << "of the base alone, of all together, of another time";
}

TEST(ServeBench, AsksAsTheMixSays) {
  const auto count = [](Mix mix) {
    std::map<std::string, double> share;
    for (const LoadRequest& request :
         PlanLoad({.n_requests = 6000, .mix = mix}, {"a", "b", "c"}, 1, LoadRun::kTogether)) {
      share[request.model] += 1.0 / 6000;
    }
    return share;
  };
  // Weights 1, 1/2, 1/3: shares 6/11, 3/11, 2/11; deviation below 0.7 %.
  EXPECT_NEAR(count(Mix::kZipf)["a"], 6.0 / 11, 0.03);
  EXPECT_NEAR(count(Mix::kZipf)["b"], 3.0 / 11, 0.03);
  EXPECT_NEAR(count(Mix::kZipf)["c"], 2.0 / 11, 0.03);
  EXPECT_NEAR(count(Mix::kUniform)["c"], 1.0 / 3, 0.03);
}

TEST(ServeBench, FiguresAreThoseOfTheOutcomes) {
  const std::vector<LoadRequest> requests = {
      {.model = "a", .n_prompt = 7}, {.model = "b", .n_prompt = 7}, {.model = "a", .n_prompt = 7}};
  LoadResult result = {.outcomes = std::vector<LoadOutcome>(3), .duration_s = 2};
  result.outcomes[0] = {.status = {}, .n_output = 5, .ttft_s = 0.1, .e2e_s = 0.5, .gap_s = {0.1, 0.1, 0.2}};
  result.outcomes[1] = {.status = {}, .n_output = 1, .ttft_s = 0.3, .e2e_s = 0.3, .gap_s = {}};
  result.outcomes[2] = {.status = Unavailable("gone"), .n_output = 9, .ttft_s = 9, .e2e_s = 9, .gap_s = {9}};
  const Json a = ToJson(Summarize("a", requests, result));
  EXPECT_EQ(a["completed"], 1);
  EXPECT_EQ(a["failed"], 1);
  EXPECT_EQ(a["total_input_tokens"], 7);
  EXPECT_EQ(a["total_output_tokens"], 5);
  EXPECT_DOUBLE_EQ(a["output_throughput"].get<double>(), 2.5);
  EXPECT_DOUBLE_EQ(a["mean_ttft_ms"].get<double>(), 100);
  EXPECT_DOUBLE_EQ(a["median_tpot_ms"].get<double>(), 100);  // 0.4 s for four further tokens
  EXPECT_DOUBLE_EQ(a["median_itl_ms"].get<double>(), 100);
  EXPECT_DOUBLE_EQ(a["p99_e2el_ms"].get<double>(), 500);
  const Json total = ToJson(Summarize("total", requests, result));
  EXPECT_EQ(total["completed"], 2);
  EXPECT_DOUBLE_EQ(total["median_ttft_ms"].get<double>(), 200);
}

class LoadOnServer : public server::ServerTest {
 protected:
  Endpoint At() const { return {.host = "127.0.0.1", .port = std::to_string(port()), .prefix = "", .api_key = ""}; }
};

TEST_F(LoadOnServer, ReportsVllmsKeysForEveryVariantAndOverTheBase) {
  service_.Add("base", {.pieces = {"one", " two", " three", " four"}, .pause = server::milliseconds(2)});
  Start();
  const ServeBenchReport report =
      ValueOrDie(RunServeBench(At(), {.rate = 200, .n_requests = 12, .n_prompt = 3, .n_output = 4}));
  EXPECT_EQ(report.total.completed, 12u) << report.first_failure;
  const Json json = ToJson(report);
  for (const char* key : {"request_throughput", "output_throughput", "total_token_throughput", "completed", "duration",
                          "total_input_tokens", "total_output_tokens"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  for (const char* kind : {"mean", "median", "std", "p99"}) {
    for (const char* figure : {"ttft", "tpot", "itl", "e2el"}) {
      const std::string key = std::string(kind) + "_" + figure + "_ms";
      EXPECT_TRUE(json.contains(key) && json["base_only"].contains(key)) << key;
    }
  }
  ASSERT_EQ(json["variants"].size(), 2u);
  EXPECT_EQ(json["variants"][0]["model"], "base");
  EXPECT_EQ(json["variants"][1]["model"], "sql");
  EXPECT_TRUE(json["variants"][0]["ratio_to_base"].contains("median_ttft_ms"));
  EXPECT_EQ(json["base_only"]["total_output_tokens"], 12 * 4);
  EXPECT_GE(json["base_only"]["median_e2el_ms"].get<double>(), 6.0) << "four chunks, 2 ms before each";
}

TEST_F(LoadOnServer, AsksNothingTwice) {
  Start();
  const ServeBenchOptions options = {.n_requests = 20, .n_prompt = 16};
  ServeBenchOptions again = options;
  again.prompt_seed = ValueOrDie(RunServeBench(At(), options)).prompt_seed;
  const ServeBenchReport second = ValueOrDie(RunServeBench(At(), options));
  EXPECT_EQ(ToJson(second)["prompt_seed"], second.prompt_seed);
  const auto distinct = [&] {
    const std::vector<std::vector<int32_t>> prompts = service_.StartedPrompts();
    return std::pair(prompts.size(), std::set(prompts.begin(), prompts.end()).size());
  };
  EXPECT_EQ(distinct(), std::pair(size_t{80}, size_t{80})) << "two times two runs";
  EXPECT_EQ(ValueOrDie(RunServeBench(At(), again)).prompt_seed, *again.prompt_seed);
  EXPECT_EQ(distinct(), std::pair(size_t{120}, size_t{80})) << "the first time's prompts were asked for";
}

TEST_F(LoadOnServer, CountsFailuresAndNamesTheFirst) {
  service_.Add("broken", {.failure = Internal("no more")});
  service_.Add("refuses", {.refusal = ResourceExhausted("queue full")});
  Start();
  const ServeBenchReport report = ValueOrDie(RunServeBench(At(), {.models = {"base", "broken", "refuses", "unknown"},
                                                                  .with_baseline = false,
                                                                  .n_requests = 40,
                                                                  .mix = Mix::kUniform}));
  EXPECT_GT(report.total.completed, 0u);
  EXPECT_EQ(report.total.completed + report.total.failed, 40u);
  EXPECT_EQ(report.variants[0].failed, 0u);
  for (const size_t i : {size_t{1}, size_t{2}, size_t{3}}) {
    EXPECT_EQ(report.variants[i].completed, 0u) << report.variants[i].name;
  }
  EXPECT_FALSE(report.first_failure.empty());
  ExpectRefusal(RunServeBench(At(), {.models = {"unknown"}, .with_baseline = false, .n_requests = 2}),
                StatusCode::kUnavailable, {"404", "unknown"});
}

TEST_F(LoadOnServer, AnAnswerThatDoesNotEndIsCutShort) {
  service_.Add("base", {.hangs = true});
  Start();
  ServeBenchOptions options = {.models = {"base"}, .with_baseline = false, .n_requests = 3};
  options.load.timeout_s = 0.3;
  ExpectRefusal(RunServeBench(At(), options), StatusCode::kUnavailable, {"no request succeeded"});
}

TEST_F(LoadOnServer, KeepsToTheConcurrencyAllowed) {
  service_.Add("base", {.pieces = {"a", "b"}, .pause = server::milliseconds(10)});
  Start();
  ServeBenchOptions options = {.models = {"base"}, .with_baseline = false, .n_requests = 6};
  options.load.max_concurrency = 1;
  const ServeBenchReport report = ValueOrDie(RunServeBench(At(), options));
  EXPECT_EQ(report.total.completed, 6u) << report.first_failure;
  EXPECT_GE(report.total.duration_s, 6 * 0.02) << "one after the other";
}

TEST(ServeBench, SaysWhenNobodyAnswers) {
  ExpectRefusal(RunServeBench({.host = "127.0.0.1", .port = "1", .prefix = "", .api_key = ""}, {.n_requests = 1}),
                StatusCode::kUnavailable, {"127.0.0.1:1"});
}

}  // namespace
}  // namespace df::tools
