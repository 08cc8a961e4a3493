#include "format/checkpoint.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include "testing/refusal.h"
#include "testing/temporary_directory.h"

namespace df {
namespace {

namespace fs = std::filesystem;
using testing::ExpectRefusal;
using testing::TemporaryDirectory;
using testing::ValueOrDie;
using testing::WriteFile;

constexpr char kTests[] = DELTAFOLD_SOURCE_DIR "/tests/";

std::string Hostile(const std::string& name) { return std::string(kTests) + "hostile/" + name; }

TEST(Checkpoint, OpensEveryReferenceModel) {
  for (const auto& entry : fs::directory_iterator(std::string(kTests) + "golden/models")) {
    if (!entry.is_directory()) continue;
    const auto checkpoint = Checkpoint::Open(entry.path().string());
    DF_ASSERT_OK(checkpoint);
    EXPECT_NE((*checkpoint)->FindOrNull("model.embed_tokens.weight"), nullptr);
    EXPECT_EQ((*checkpoint)->FindOrNull("model.embed_tokens.bias"), nullptr);
    EXPECT_TRUE(std::is_sorted((*checkpoint)->names().begin(), (*checkpoint)->names().end()));
    DF_EXPECT_OK((*checkpoint)->CheckIntact());
  }
}

TEST(Checkpoint, SeesShardsAsOneModel) {
  const auto whole = ValueOrDie(Checkpoint::Open(std::string(kTests) + "golden/models/llama-fp16"));
  const auto sharded = ValueOrDie(Checkpoint::Open(std::string(kTests) + "golden/models/llama-fp16-sharded"));
  EXPECT_EQ(whole->names(), sharded->names());
  EXPECT_EQ(whole->weight_bytes(), sharded->weight_bytes());
  DF_EXPECT_OK(Checkpoint::Open(Hostile("index/ok")));
}

TEST(Checkpoint, RefusesEveryHostileIndexNamingTheShard) {
  ExpectRefusal(Checkpoint::Open(Hostile("index/dotdot")), StatusCode::kCorrupt, {"../", "plain file name"});
  ExpectRefusal(Checkpoint::Open(Hostile("index/absolute")), StatusCode::kCorrupt, {"\"/", "plain file name"});
  ExpectRefusal(Checkpoint::Open(Hostile("index/missing_shard")), StatusCode::kCorrupt,
                {"model-00002-of-00002.safetensors", "does not exist"});
  ExpectRefusal(Checkpoint::Open(Hostile("index/tensor_twice")), StatusCode::kCorrupt, {"stands in shard"});
  ExpectRefusal(Checkpoint::Open(Hostile("index/not_json")), StatusCode::kCorrupt, {"index.json", "not valid JSON"});
  ExpectRefusal(Checkpoint::Open(Hostile("index/nul_in_name")), StatusCode::kCorrupt, {"\\u0000"});
}

TEST(Checkpoint, SaysWhatToDoWhenWeightsAreMissingOrPickled) {
  ExpectRefusal(Checkpoint::Open(Hostile("model/weights_missing")), StatusCode::kNotFound, {"model.safetensors"});
  ExpectRefusal(Checkpoint::Open(Hostile("model/pickle_only")), StatusCode::kUnsupported, {"pickled", "safetensors"});
  ExpectRefusal(Checkpoint::Open("/nonexistent"), StatusCode::kNotFound, {"/nonexistent"});
}

// A copy of the sound two-shard checkpoint with another index.
class ShardIndex : public ::testing::Test {
 protected:
  ShardIndex() { fs::copy(Hostile("index/ok"), directory_.path(), fs::copy_options::recursive); }
  Result<std::shared_ptr<const Checkpoint>> OpenWith(const std::string& index) {
    const std::string path = directory_ / "model.safetensors.index.json";
    fs::remove(path);
    WriteFile(path, index);
    return Checkpoint::Open(directory_.path());
  }
  TemporaryDirectory directory_;
};

TEST_F(ShardIndex, MustBeAMapOfNamesToPlainFiles) {
  ExpectRefusal(OpenWith("{}"), StatusCode::kCorrupt, {"weight_map"});
  ExpectRefusal(OpenWith(R"({"weight_map":[]})"), StatusCode::kCorrupt, {"weight_map"});
  ExpectRefusal(OpenWith(R"({"weight_map":{}})"), StatusCode::kCorrupt, {"no tensor"});
  ExpectRefusal(OpenWith(R"({"weight_map":{"a":1}})"), StatusCode::kCorrupt, {"\"a\""});
  ExpectRefusal(OpenWith(R"({"weight_map":{"a":"x.safetensors","a":"y.safetensors"}})"), StatusCode::kCorrupt,
                {"duplicate"});
  for (const char* shard :
       {"", ".", "..", ".hidden.safetensors", "sub/x.safetensors", "a\\\\b.safetensors", "config.json"}) {
    ExpectRefusal(OpenWith(R"({"weight_map":{"a":")" + std::string(shard) + "\"}}"), StatusCode::kCorrupt,
                  {"shard name"});
  }
  std::string many = R"({"weight_map":{)";
  for (int i = 0; i < 2000; ++i)
    many += (i ? ",\"t" : "\"t") + std::to_string(i) + "\":\"s" + std::to_string(i) + ".safetensors\"";
  ExpectRefusal(OpenWith(many + "}}"), StatusCode::kResourceExhausted, {"1024"});
}

TEST_F(ShardIndex, MustAgreeWithTheShards) {
  const std::string shard = "model-00001-of-00002.safetensors";
  ExpectRefusal(OpenWith(R"({"weight_map":{"none":")" + shard + "\"}}"), StatusCode::kCorrupt, {"does not name it"});
  const auto file = ValueOrDie(SafetensorsFile::Open(directory_ / shard));
  std::string map;
  for (const NamedTensor& tensor : file->tensors()) map += "\"" + tensor.name + "\":\"" + shard + "\",";
  ExpectRefusal(OpenWith(R"({"weight_map":{)" + map + R"("extra":")" + shard + "\"}}"), StatusCode::kCorrupt,
                {"\"extra\"", "is not in shard"});
}

TEST(Checkpoint, FailsAloneWhenItsFileIsTruncatedWhileMapped) {
  const TemporaryDirectory directory;
  fs::copy(std::string(kTests) + "golden/models/llama3-gqa", directory.path());
  const auto checkpoint = ValueOrDie(Checkpoint::Open(directory.path()));
  fs::permissions(directory / "model.safetensors", fs::perms::owner_write, fs::perm_options::add);
  fs::resize_file(directory / "model.safetensors", 4096);
  ExpectRefusal(Fingerprint(*checkpoint, checkpoint->names()), StatusCode::kCorrupt,
                {"model.safetensors", "truncated"});
}

// Gives the test a cache and a hub of its own.
class Environment : public ::testing::Test {
 protected:
  void Set(const char* name, const std::string& value) {
    const char* old = getenv(name);
    saved_.emplace_back(name, old == nullptr ? std::optional<std::string>() : std::string(old));
    setenv(name, value.c_str(), 1);
  }
  ~Environment() override {
    for (auto at = saved_.rbegin(); at != saved_.rend(); ++at) {
      at->second ? setenv(at->first, at->second->c_str(), 1) : unsetenv(at->first);
    }
  }
  TemporaryDirectory directory_;

 private:
  std::vector<std::pair<const char*, std::optional<std::string>>> saved_;
};

class FingerprintTest : public Environment {
 protected:
  FingerprintTest() {
    Set("XDG_CACHE_HOME", directory_ / "cache");
    fs::copy(std::string(kTests) + "golden/models/llama3-gqa", model_);
    MakeOld();
  }
  // Files of the last two seconds are not remembered.
  void MakeOld() const {
    fs::last_write_time(model_ + "/model.safetensors", fs::file_time_type::clock::now() - std::chrono::minutes(++age_));
  }
  std::string Take(bool use_cache) const {
    const auto checkpoint = ValueOrDie(Checkpoint::Open(model_));
    return ValueOrDie(Fingerprint(*checkpoint, checkpoint->names(), {.use_cache = use_cache}));
  }
  std::vector<std::string> CacheFiles() const {
    std::vector<std::string> files;
    std::error_code none;
    for (const auto& entry : fs::recursive_directory_iterator(directory_ / "cache", none)) {
      if (entry.is_regular_file()) files.push_back(entry.path().string());
    }
    return files;
  }
  std::string model_ = directory_ / "model";
  mutable int age_ = 0;
};

TEST_F(FingerprintTest, IsTheSameWithAndWithoutTheCache) {
  const std::string fingerprint = Take(false);
  EXPECT_EQ(fingerprint.size(), 32U);
  EXPECT_EQ(Take(true), fingerprint);
  EXPECT_EQ(CacheFiles().size(), 1U);
  EXPECT_EQ(Take(true), fingerprint);
}

TEST_F(FingerprintTest, NeverTrustsABrokenCache) {
  const std::string fingerprint = Take(true);
  WriteFile(CacheFiles().at(0), "not a digest");
  EXPECT_EQ(Take(true), fingerprint);
  Set("XDG_CACHE_HOME", "/proc/nowhere");
  EXPECT_EQ(Take(true), fingerprint);
}

TEST_F(FingerprintTest, ChangesWithAnyByteEvenWhenTheSizeStays) {
  const std::string before = Take(true);
  std::string content = testing::ReadFile(model_ + "/model.safetensors");
  content.back() ^= 1;
  fs::remove(model_ + "/model.safetensors");
  WriteFile(model_ + "/model.safetensors", content);
  MakeOld();
  EXPECT_NE(Take(true), before);
}

TEST_F(FingerprintTest, DoesNotRememberAFileWrittenThisMoment) {
  fs::last_write_time(model_ + "/model.safetensors", fs::file_time_type::clock::now());
  Take(true);
  EXPECT_TRUE(CacheFiles().empty());
}

TEST_F(FingerprintTest, DependsOnNamesAndNotOnTheirOrder) {
  const auto checkpoint = ValueOrDie(Checkpoint::Open(model_));
  std::vector<std::string> names = checkpoint->names();
  const std::string all = Take(true);
  std::reverse(names.begin(), names.end());
  EXPECT_EQ(ValueOrDie(Fingerprint(*checkpoint, names)), all);
  names.pop_back();
  EXPECT_NE(ValueOrDie(Fingerprint(*checkpoint, names)), all);
  ExpectRefusal(Fingerprint(*checkpoint, {"nothing"}), StatusCode::kNotFound, {"\"nothing\""});
}

class HubTest : public Environment {
 protected:
  HubTest() { Set("HF_HUB_CACHE", directory_.path()); }
  std::string AddSnapshot(const std::string& repository, const std::string& revision) {
    const std::string path = directory_ / (repository + "/snapshots/" + revision);
    fs::create_directories(path);
    return path;
  }
};

TEST_F(HubTest, PrefersADirectory) {
  EXPECT_EQ(ValueOrDie(ResolveModelDirectory(directory_.path())), directory_.path());
}

TEST_F(HubTest, FollowsRefsMainElseTheOnlySnapshot) {
  const std::string first = AddSnapshot("models--org--name", "abc123");
  EXPECT_EQ(ValueOrDie(ResolveModelDirectory("org/name")), first);
  const std::string second = AddSnapshot("models--org--name", "def456");
  ExpectRefusal(ResolveModelDirectory("org/name"), StatusCode::kNotFound, {"org/name", "2 snapshots"});
  fs::create_directories(directory_ / "models--org--name/refs");
  WriteFile(directory_ / "models--org--name/refs/main", "def456\n");
  EXPECT_EQ(ValueOrDie(ResolveModelDirectory("org/name")), second);
  WriteFile(directory_ / "models--org--name/refs/main", "../../..");
  ExpectRefusal(ResolveModelDirectory("org/name"), StatusCode::kNotFound, {"refs/main"});
}

TEST_F(HubTest, NeverLeavesTheHub) {
  for (const char* argument : {"", "..", "../x", "a/../b", "a/b/c", "/none/of/this", "a/.b", "-\n", "a//b"}) {
    EXPECT_EQ(testing::StatusOf(ResolveModelDirectory(argument)).code(),
              std::string(argument) == ".." ? StatusCode::kOk : StatusCode::kNotFound)
        << argument;
  }
  ExpectRefusal(ResolveModelDirectory(std::string("a\0b", 3)), StatusCode::kInvalidArgument, {"NUL"});
  ExpectRefusal(ResolveModelDirectory("org/absent"), StatusCode::kNotFound, {"org/absent", "download"});
}

}  // namespace
}  // namespace df
