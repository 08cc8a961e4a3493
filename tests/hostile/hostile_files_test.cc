// Every file of tests/hostile gives its expected answer (index.jsonl): a named refusal or a clean load; never a crash.
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>

#include "base/json.h"
#include "codec/compressor.h"
#include "format/peft_adapter.h"
#include "format/safetensors.h"
#include "format/torch_pickle.h"
#include "model/weights.h"
#include "testing/status_matchers.h"
#include "text/tokenizer.h"

namespace df {
namespace {

const std::string kRoot = std::string(DELTAFOLD_SOURCE_DIR) + "/tests/hostile/";

std::vector<Json> Cases(const std::string& kind) {
  std::ifstream index(kRoot + "index.jsonl");
  std::vector<Json> cases;
  for (std::string line; std::getline(index, line);) {
    Json item = testing::ValueOrDie(ParseJson(line));
    if (item["kind"] == kind && !item.contains("generate")) cases.push_back(std::move(item));
  }
  return cases;
}

// Runs `load` on each case of a kind and compares outcome and time with what the index says.
template <typename Load>
void ExpectAnswers(const std::string& kind, const Load& load) {
  const std::vector<Json> cases = Cases(kind);
  ASSERT_FALSE(cases.empty());
  for (const Json& item : cases) {
    const auto path = item["path"].get<std::string>();
    SCOPED_TRACE(path + ": " + item["why"].get<std::string>());
    const auto start = std::chrono::steady_clock::now();
    const Status status = load(kRoot + path, item);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    EXPECT_LT(seconds.count(), item.value("max_seconds", 5.0));
    const std::string outcome = status.ok() ? "ok" : "error";
    const auto expected = item["expect"].get<std::string>();
    if (outcome != expected && outcome != item.value("also_accepted", "")) {
      ADD_FAILURE() << "expected " << expected << ", got " << outcome << " " << status.message();
    }
    if (!status.ok()) {
      EXPECT_NE(status.code(), StatusCode::kInternal) << status.message();
      EXPECT_GT(status.message().size(), 20U) << "a refusal names what it refuses: " << status.message();
    }
  }
}

TEST(Hostile, SafetensorsFiles) {
  ExpectAnswers("safetensors",
                [](const std::string& path, const Json&) { return testing::StatusOf(SafetensorsFile::Open(path)); });
}

TEST(Hostile, TorchFiles) {
  ExpectAnswers("diff_pt", [](const std::string& path, const Json&) -> Status {
    DF_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(path));
    return testing::StatusOf(ParseTorchFile(file->bytes()));
  });
}

Result<std::shared_ptr<const BaseWeights>> LoadModel(KernelContext& context, const std::string& directory) {
  DF_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint::Open(directory));
  return LoadBase(context, checkpoint);
}

TEST(Hostile, ModelDirectories) {
  KernelContext context(1);
  ExpectAnswers("model",
                [&](const std::string& path, const Json&) { return testing::StatusOf(LoadModel(context, path)); });
}

TEST(Hostile, AdapterDirectories) {
  KernelContext context(1);
  ExpectAnswers("adapter", [&](const std::string& path, const Json& item) -> Status {
    const auto base = LoadModel(context, kRoot + item["base"].get<std::string>());
    DF_EXPECT_OK(base);
    DF_ASSIGN_OR_RETURN(const auto adapter, PeftAdapter::Open(path));
    return testing::StatusOf(LoadAdapter(context, **base, *adapter));
  });
}

TEST(Hostile, FineTunesToCompress) {
  ThreadPool pool(1);
  const std::string out = ::testing::TempDir() + "deltafold-hostile-delta";
  ExpectAnswers("compress", [&](const std::string& path, const Json& item) -> Status {
    DF_ASSIGN_OR_RETURN(const auto base, Checkpoint::Open(kRoot + item["base"].get<std::string>()));
    DF_ASSIGN_OR_RETURN(const auto fine_tune, Checkpoint::Open(path));
    return testing::StatusOf(Compress(pool, *base, *fine_tune, out, {.replace = true}));
  });
}

// The input of a case may be refused or encoded, but only cleanly.
TEST(Hostile, TokenizerFiles) {
  ExpectAnswers("tokenizer", [](const std::string& path, const Json& item) -> Status {
    DF_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(path));
    if (item.contains("input")) {
      const auto ids = tokenizer->Encode(item["input"].get<std::string>());
      if (!ids.ok()) {
        EXPECT_NE(ids.status().code(), StatusCode::kInternal) << ids.status().message();
      }
    }
    return Status::Ok();
  });
}

TEST(Hostile, EveryKindOfTheIndexIsTried) {
  std::ifstream index(kRoot + "index.jsonl");
  for (std::string line; std::getline(index, line);) {
    const auto kind = testing::ValueOrDie(ParseJson(line))["kind"].get<std::string>();
    EXPECT_TRUE(kind == "safetensors" || kind == "model" || kind == "adapter" || kind == "compress" ||
                kind == "tokenizer" || kind == "diff_pt")
        << kind;
  }
}

}  // namespace
}  // namespace df
