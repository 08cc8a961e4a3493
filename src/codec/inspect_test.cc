#include "codec/inspect.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "base/json.h"
#include "codec/compressor.h"
#include "testing/made_checkpoint.h"

namespace df {
namespace {

using testing::TemporaryDirectory;
using testing::ValueOrDie;

const std::string kTests = std::string(DELTAFOLD_SOURCE_DIR) + "/tests/";

bool HasFact(const Inspection& inspection, const std::string& name, const std::string& value) {
  for (const auto& [key, found] : inspection.facts) {
    if (key == name) return found == value;
  }
  return false;
}

TEST(Inspect, ShowsAModelWithItsTensors) {
  const Inspection inspection = Inspect(kTests + "golden/models/qwen2-bias-tied", nullptr);
  DF_EXPECT_OK(inspection.problem);
  EXPECT_EQ(inspection.kind, "model");
  EXPECT_TRUE(HasFact(inspection, "architecture", "qwen2"));
  EXPECT_TRUE(HasFact(inspection, "head", "tied to the embedding"));
  EXPECT_GT(inspection.tensors.size(), 20U);
}

TEST(Inspect, ShowsFilesAndIndexes) {
  EXPECT_EQ(Inspect(kTests + "golden/models/llama3-gqa/model.safetensors", nullptr).kind, "safetensors file");
  const Inspection index = Inspect(kTests + "golden/models/llama-fp16-sharded/model.safetensors.index.json", nullptr);
  DF_EXPECT_OK(index.problem);
  EXPECT_TRUE(HasFact(index, "shards", "2"));
  EXPECT_EQ(Inspect(kTests + "golden/models/llama3-gqa/config.json", nullptr).kind, "config");
}

TEST(Inspect, ShowsADeltaWithAndWithoutItsBase) {
  TemporaryDirectory directory;
  const std::string set = kTests + "golden/deltas/llama-odd/";
  const auto base = ValueOrDie(Checkpoint::Open(set + "base"));
  const auto fine_tune = ValueOrDie(Checkpoint::Open(set + "ft0"));
  ThreadPool pool(1);
  const CompressReport report = ValueOrDie(Compress(pool, *base, *fine_tune, directory.Sub("delta"), {}));
  for (const Checkpoint* given : {static_cast<const Checkpoint*>(nullptr), base.get()}) {
    const Inspection inspection = Inspect(directory.Sub("delta"), given);
    DF_EXPECT_OK(inspection.problem);
    EXPECT_EQ(inspection.kind, "delta");
    EXPECT_EQ(inspection.bytes, report.delta_bytes);
    EXPECT_EQ(inspection.full_bytes, report.full_bytes);
    EXPECT_TRUE(HasFact(inspection, "base fingerprint", report.base_fingerprint));
  }
  EXPECT_EQ(Inspect(directory.Sub("delta"), fine_tune.get()).problem.code(), StatusCode::kFailedPrecondition);
}

TEST(Inspect, ShowsWhatAnAdapterDoesWithAndWithoutItsBase) {
  const std::string lora = kTests + "golden/lora/qwen2-bias-tied/";
  const Inspection alone = Inspect(lora + "dora-rslora-bias", nullptr);
  DF_EXPECT_OK(alone.problem);
  EXPECT_TRUE(HasFact(alone, "method", "DoRA, scale alpha / sqrt(r)"));
  EXPECT_TRUE(HasFact(alone, "rank", "4"));
  EXPECT_TRUE(HasFact(alone, "biases", "of its modules"));
  EXPECT_TRUE(HasFact(Inspect(lora + "embed-saved", nullptr), "saved modules", "embed_tokens"));

  const auto base = ValueOrDie(Checkpoint::Open(kTests + "golden/models/qwen2-bias-tied"));
  const auto code_of = [&](const std::string& adapter, const std::string& tensor) -> std::string {
    const Inspection bound = Inspect(lora + adapter, base.get());
    DF_EXPECT_OK(bound.problem);
    for (const InspectedTensor& found : bound.tensors) {
      if (found.name == tensor) return found.code;
    }
    return "none";
  };
  EXPECT_EQ(code_of("dora-rslora-bias", "model.layers.0.self_attn.v_proj.weight"), "rank 2 + DoRA");
  EXPECT_EQ(code_of("dora-rslora-bias", "model.layers.0.self_attn.v_proj.bias"), "raw F32");
  EXPECT_EQ(code_of("dora-rslora-bias", "model.layers.0.self_attn.q_proj.weight"), "same");
  EXPECT_EQ(code_of("trainable-tokens", "model.embed_tokens.weight"), "rows 3");
  EXPECT_EQ(code_of("trainable-tokens", "lm_head.weight"), "none");  // tied still
  EXPECT_EQ(code_of("lm-head-target", "lm_head.weight"), "raw BF16 + rank 2");
}

TEST(Inspect, ChecksTheTokenizerOfAModel) {
  TemporaryDirectory directory;
  testing::WriteModel({}, directory.Sub("model"));
  DF_EXPECT_OK(Inspect(directory.Sub("model"), nullptr).problem);
  for (const auto& [file, is_sound] : {std::pair{"ok.json", true}, {"normalizer_unknown.json", false}}) {
    const std::string json = ValueOrDie(ReadFileBounded(kTests + "hostile/tokenizer/" + file, 1 << 20));
    DF_ASSERT_OK(WriteFileAtomically(directory.Sub("model/tokenizer.json"), json));
    EXPECT_EQ(Inspect(directory.Sub("model"), nullptr).problem.ok(), is_sound) << file;
  }
}

TEST(Inspect, AModelWithoutTokenizerIsSoundAndCannotBeServed) {
  const Inspection without = Inspect(kTests + "golden/models/qwen2-bias-tied", nullptr);
  DF_EXPECT_OK(without.problem);
  EXPECT_FALSE(without.IsServable());
  EXPECT_NE(without.lack.message().find("tokenizer.json"), std::string::npos) << without.lack.message();
  const Inspection with = Inspect(std::string(DELTAFOLD_SOURCE_DIR) + "/demo/zen-mini-base", nullptr);
  DF_EXPECT_OK(with.lack);
  EXPECT_TRUE(with.IsServable());
}

// What stands under a name of ours and cannot be read is named, never passed over.
TEST(Inspect, NamesALinkToNothingAndWhatIsNoFile) {
  const auto make = std::map<std::string, void (*)(const std::string&)>{
      {"link", [](const std::string& path) { std::filesystem::create_symlink("nowhere", path); }},
      {"directory", [](const std::string& path) { std::filesystem::create_directory(path); }},
      {"fifo", [](const std::string& path) { ASSERT_EQ(mkfifo(path.c_str(), 0600), 0); }},
      {"socket", [](const std::string& path) { ASSERT_EQ(mknod(path.c_str(), S_IFSOCK | 0600, 0), 0); }}};
  for (const std::string name : {"delta_config.json", "delta_model.safetensors", "adapter_config.json", "config.json",
                                 "model.safetensors", "model.safetensors.index.json", "tokenizer.json",
                                 "tokenizer_config.json", "chat_template.jinja", "generation_config.json"}) {
    for (const auto& [kind, make_it] : make) {
      TemporaryDirectory directory;
      testing::WriteModel({}, directory.Sub("model"));
      const std::string path = directory.Sub("model/" + name);
      if (name.starts_with("tokenizer_") || name.starts_with("chat_")) {  // not looked at without a tokenizer
        std::filesystem::copy_file(kTests + "hostile/tokenizer/ok.json", directory.Sub("model/tokenizer.json"));
      }
      std::filesystem::remove(path);
      make_it(path);
      const Status problem = Inspect(directory.Sub("model"), nullptr).problem;
      EXPECT_EQ(problem.code(), kind == "link" ? StatusCode::kCorrupt : StatusCode::kFailedPrecondition)
          << name << " as a " << kind << ": " << problem.message();
      EXPECT_NE(problem.message().find(path + " is "), std::string::npos) << problem.message();
    }
  }
}

TEST(Inspect, SaysWhatIsMissing) {
  EXPECT_EQ(Inspect(kTests + "no such thing", nullptr).problem.code(), StatusCode::kNotFound);
  EXPECT_FALSE(Inspect(kTests, nullptr).problem.ok());
}

// Every file of tests/hostile gets its expected answer.
TEST(Inspect, AnswersHostileFilesAsExpected) {
  std::ifstream index(kTests + "hostile/index.jsonl");
  size_t n_cases = 0;
  for (std::string line; std::getline(index, line);) {
    const Json entry = ValueOrDie(ParseJson(line));
    const std::string kind = entry["kind"];
    const std::string path = kTests + "hostile/" + entry["path"].get<std::string>();
    if (kind == "diff_pt" || kind == "compress" || entry.contains("generate")) continue;
    std::shared_ptr<const Checkpoint> base;
    if (entry.contains("base"))
      base = ValueOrDie(Checkpoint::Open(kTests + "hostile/" + entry["base"].get<std::string>()));
    const Inspection inspection = Inspect(path, base.get());
    ++n_cases;
    if (entry.contains("also_accepted")) continue;
    EXPECT_EQ(inspection.problem.ok(), entry["expect"] == "ok") << path << ": " << inspection.problem.message();
    EXPECT_NE(inspection.problem.code(), StatusCode::kInternal) << path;
  }
  EXPECT_GE(n_cases, 60U);
}

}  // namespace
}  // namespace df
