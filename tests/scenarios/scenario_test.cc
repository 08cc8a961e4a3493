// Runs the scenario files of this folder (README.md tells their language).
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>

#include "engine/kv_cache.h"
#include "model/kv_pool.h"
#include "testing/engine_client.h"
#include "testing/late_generation.h"
#include "testing/tiny_weights.h"

namespace df {
namespace {

using testing::ValueOrDie;

// The words of a line; "key=value" words by key.
struct Line {
  explicit Line(const std::string& text) {
    std::istringstream stream(text.substr(0, text.find('#')));
    for (std::string word; stream >> word;) {
      const size_t equals = word.find('=');
      if (equals == std::string::npos) {
        words.push_back(word);
      } else {
        options[word.substr(0, equals)] = word.substr(equals + 1);
      }
    }
  }
  bool Has(const std::string& key) const { return options.contains(key); }
  std::string Text(const std::string& key, const std::string& otherwise) const {
    return Has(key) ? options.at(key) : otherwise;
  }
  size_t Number(const std::string& key, size_t otherwise) const {
    return Has(key) ? std::stoul(options.at(key)) : otherwise;
  }

  std::vector<std::string> words;
  std::map<std::string, std::string> options;
};

class Scenario {
 public:
  explicit Scenario(const testing::TinyWeights& weights) : weights_(weights) {}

  void RunLine(const Line& line) {
    const std::string& verb = line.words.at(0);
    if (verb == "engine") {
      StartEngine(line);
    } else if (verb == "request") {
      Submit(line);
    } else if (verb == "refuse") {
      const Status status = engine_->Submit(Request(line));
      EXPECT_EQ(StatusCodeName(status.code()), line.words.at(2)) << status.message();
    } else if (verb == "cancel") {
      engine_->Cancel(line.words.at(1));
    } else if (verb == "cold") {
      const std::string& variant = line.words.at(1);
      late_[variant] = std::make_shared<testing::LateGeneration>(FixedGeneration(weights_.variants.at(variant)));
    } else if (verb == "load" || verb == "fail") {
      (verb == "load" ? late_.at(line.words.at(1))->has_come : late_.at(line.words.at(1))->fails) = true;
      engine_->Wake();
    } else if (verb == "release") {
      brake_->Release();
    } else if (verb == "expect") {
      ExpectEnd(line);
    } else if (verb == "expect_stats") {
      ExpectStats(line);
    } else {
      FAIL() << "no such line: " << verb;
    }
  }

 private:
  void StartEngine(const Line& line) {
    brake_.reset();
    engine_.reset();
    EngineOptions options;
    options.n_threads = line.Number("threads", 1);
    options.max_num_seqs = line.Number("seqs", options.max_num_seqs);
    options.max_num_batched_tokens = line.Number("rows", options.max_num_batched_tokens);
    options.max_queued_requests = line.Number("queue", options.max_queued_requests);
    options.max_model_len = line.Number("context", 0);
    options.enable_prefix_caching = line.Number("prefix_caching", 1) == 1;
    options.kv_cache_bytes =
        KvBlocksFor(line.Number("kv_tokens", 0)) * KvPool::BlockBytes(weights_.base->config, options.kv_dtype);
    engine_ = ValueOrDie(Engine::Create(weights_.base, options));
  }

  GenerationRequest Request(const Line& line) {
    GenerationRequest request =
        testing::TinyRequest(weights_, line.words.at(1), line.Text("variant", "base"), line.Number("prompt", 1));
    request.cache_salt = line.Text("salt", "");
    request.variant = generations_.try_emplace(request.variant_name, request.variant).first->second;
    if (late_.contains(line.Text("variant", ""))) request.variant = late_.at(line.options.at("variant"));
    request.params.temperature = line.Has("temperature") ? std::stod(line.options.at("temperature")) : 0.0;
    request.params.min_tokens = line.Number("min_tokens", 0);
    if (line.Has("max_tokens")) request.params.max_tokens = line.Number("max_tokens", 0);
    if (line.Has("seed")) request.params.seed = line.Number("seed", 0);
    if (line.Has("stop")) request.params.stop_ids = {static_cast<int32_t>(line.Number("stop", 0))};
    if (line.Has("timeout_ms")) request.timeout_ms = static_cast<int64_t>(line.Number("timeout_ms", 0));
    return request;
  }

  void Submit(const Line& line) {
    const GenerationRequest request = Request(line);
    const bool hold = line.Number("hold", 0) == 1;
    if (hold) brake_ = std::make_unique<testing::Brake>(request);
    events_[request.id] = request.events;
    DF_ASSERT_OK(engine_->Submit(request));
    if (hold) brake_->AwaitHold();
  }

  void ExpectEnd(const Line& line) {
    const std::string& name = line.words.at(1);
    ASSERT_TRUE(events_.contains(name)) << "no request " << name;
    const testing::Outcome outcome = testing::Await(*events_.at(name));
    EXPECT_EQ(FinishReasonName(*outcome.finish), line.words.at(2)) << outcome.status.message();
    if (line.Has("tokens")) {
      EXPECT_EQ(outcome.tokens.size(), line.Number("tokens", 0));
    }
    if (line.Has("same_as")) {
      EXPECT_EQ(outcome.tokens, answers_.at(line.options.at("same_as")));
    }
    if (line.Has("status")) {
      EXPECT_EQ(StatusCodeName(outcome.status.code()), line.options.at("status"));
    }
    answers_[name] = outcome.tokens;
  }

  void ExpectStats(const Line& line) {
    const EngineStats stats = testing::IdleStats(*engine_);
    const std::map<std::string, uint64_t> figures = {{"preemptions", stats.preemptions},
                                                     {"kv_blocks_used", stats.kv_blocks_used},
                                                     {"prompt_tokens", stats.prompt_tokens},
                                                     {"generation_tokens", stats.generation_tokens},
                                                     {"steps", stats.steps},
                                                     {"prefix_queries", stats.prefix_cache_queries},
                                                     {"prefix_hits", stats.prefix_cache_hits}};
    for (const auto& [name, expected] : line.options) {
      if (expected == "some") {
        EXPECT_GT(figures.at(name), 0u) << name;
      } else {
        EXPECT_EQ(std::to_string(figures.at(name)), expected) << name;
      }
    }
  }

  const testing::TinyWeights& weights_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<testing::Brake> brake_;                                 // let go before the engine ends
  std::map<std::string, std::shared_ptr<testing::LateGeneration>> late_;  // by variant
  std::map<std::string, GenerationRef> generations_;                      // by variant
  std::map<std::string, std::shared_ptr<EventQueue>> events_;
  std::map<std::string, std::vector<int32_t>> answers_;
};

std::vector<std::filesystem::path> ScenarioFiles() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(DELTAFOLD_SOURCE_DIR "/tests/scenarios")) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(".txt") && name != "CMakeLists.txt") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

TEST(Scenarios, EndAsTheirFilesSay) {
  const testing::TinyWeights weights = testing::LoadTinyWeights();
  const std::vector<std::filesystem::path> files = ScenarioFiles();
  EXPECT_GE(files.size(), 4u);
  for (const std::filesystem::path& path : files) {
    Scenario scenario(weights);
    std::ifstream file(path);
    size_t number = 0;
    for (std::string text; std::getline(file, text);) {
      SCOPED_TRACE(path.filename().string() + ":" + std::to_string(++number));
      if (const Line line(text); !line.words.empty()) scenario.RunLine(line);
    }
  }
}

}  // namespace
}  // namespace df
