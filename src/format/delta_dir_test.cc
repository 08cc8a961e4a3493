#include "format/delta_dir.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "format/delta_fixture.h"
#include "format/delta_tensors.h"
#include "format/digest.h"

namespace df {
namespace {

namespace fs = std::filesystem;
using testing::ConfigText;
using testing::DeltaTest;
using testing::ExpectRefusal;
using testing::kE;
using testing::kFingerprint;
using testing::kScale;
using testing::kW;
using testing::ValueOrDie;
using testing::ViewOf;

TEST_F(DeltaTest, GivesBackWhatWasWritten) {
  Write();
  const auto delta = ValueOrDie(DeltaDirectory::Open(path_));
  EXPECT_EQ(delta->metadata().base_fingerprint, kFingerprint);
  EXPECT_EQ(delta->weights(),
            (std::vector<std::string>{kE, "model.layers.0.mlp.up_proj.bias", kW, "model.norm.weight"}));
  EXPECT_EQ(delta->delta_config().at("codec").at("kind"), "sign");
  EXPECT_EQ(delta->delta_config().at("format"), "deltafold");
  EXPECT_EQ(delta->delta_config().at("base_model_name_or_path"), "org/base");
  DF_EXPECT_OK(delta->VerifyDigest());

  const LinearDelta w = ValueOrDie(delta->Linear(kW, {3, 10}, 3));
  ASSERT_EQ(w.planes.size(), 2U);
  EXPECT_TRUE(std::equal(w.planes[1].bits.begin(), w.planes[1].bits.end(), sample_.bits.begin() + 6));
  EXPECT_EQ(w.planes[0].scale, 2.0F);
  EXPECT_EQ(w.planes[1].scale, -1.0F);
  EXPECT_EQ(FloatAt(*w.planes[1].row_scale, 2), 3.0F);
  EXPECT_EQ(w.planes[1].col_scale->shape, Shape{10});
  ASSERT_EQ(w.low_rank.size(), 1U);
  EXPECT_EQ(w.low_rank[0].scale, 1.0F);
  EXPECT_EQ(FloatAt(w.low_rank[0].b, 5), 6.0F);
  EXPECT_FALSE(w.rows || w.raw || w.bias);
  EXPECT_EQ(FloatAt(*ValueOrDie(delta->Vector("model.layers.0.mlp.up_proj.bias", 3)), 0), 7.0F);

  const LinearDelta e = ValueOrDie(delta->Linear(kE, {5, 4}, 6));
  EXPECT_EQ(e.rows->index, (std::vector<int32_t>{2, 5}));
  EXPECT_EQ(FloatAt(e.rows->values, 7), 8.0F);
  EXPECT_TRUE(ValueOrDie(delta->Linear("model.layers.1.mlp.up_proj.weight", {3, 10}, 3)).IsBase());
  EXPECT_FALSE(ValueOrDie(delta->Vector("model.layers.0.input_layernorm.weight", 4)).has_value());
}

TEST_F(DeltaTest, AlignsEveryTensorToItsElements) {
  Write();
  const auto delta = ValueOrDie(DeltaDirectory::Open(path_));
  for (const auto& [name, tensor] : delta->tensors()) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.view.bytes.data()) % DTypeBytes(tensor.view.dtype), 0U) << name;
  }
}

TEST_F(DeltaTest, LeavesOutAScalarOfOneBesideRowScales) {
  LinearDelta linear = sample_.Linear();
  for (SignPlane& plane : linear.planes) plane.scale = 1.0F;
  auto writer = ValueOrDie(DeltaWriter::Create(path_, {.base_fingerprint = kFingerprint}));
  DF_ASSERT_OK(writer->AddLinear(kW, linear));
  DF_ASSERT_OK(writer->AddFile("config.json", ConfigText()));
  DF_ASSERT_OK(writer->Commit(Json::object()));
  const auto delta = ValueOrDie(DeltaDirectory::Open(path_));
  EXPECT_FALSE(delta->tensors().contains(std::string(kW) + ".scale"));
  EXPECT_EQ(ValueOrDie(delta->Linear(kW, {3, 10}, 3)).planes[1].scale, 1.0F);
}

std::string Flip(const std::string& sound, size_t bit) {
  std::string flipped = sound;
  flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
  return flipped;
}

// What Open and VerifyDigest do with the tensor file, in memory. A flip inside the fingerprint makes it that of another
// base, which is refused when it meets the base.
bool SoundAndOfTheSameBase(const std::string& file) {
  const auto header = ParseSafetensors(AsBytes(file));
  if (!header.ok()) return false;
  const auto metadata = internal::ReadDeltaMetadata(header->metadata);
  internal::TensorMap tensors;
  for (const NamedTensor& tensor : header->tensors) tensors.emplace(tensor.name, StoredTensor{tensor.view, nullptr});
  return metadata.ok() && internal::CheckDeltaTensors(tensors, metadata->format_version).ok() &&
         internal::CheckScales(tensors).ok() && internal::ContentDigest(tensors) == metadata->content_digest &&
         metadata->base_fingerprint == kFingerprint;
}

TEST_F(DeltaTest, IsOfVersionTwoOnlyWithRowsOfBytes) {
  Write();
  EXPECT_EQ(ValueOrDie(DeltaDirectory::Open(path_))->metadata().format_version, 1);
  const testing::ByteRowSample sample;
  auto writer = ValueOrDie(DeltaWriter::Create(path_, {.base_fingerprint = kFingerprint, .replace = true}));
  DF_ASSERT_OK(writer->AddLinear(kW, sample_.Linear()));
  DF_ASSERT_OK(writer->AddLinear(kE, sample.Embedding()));
  DF_ASSERT_OK(writer->AddFile("config.json", ConfigText()));
  DF_ASSERT_OK(writer->Commit(Json::object()));
  const auto delta = ValueOrDie(DeltaDirectory::Open(path_));
  EXPECT_EQ(delta->metadata().format_version, 2);
  EXPECT_EQ(delta->delta_config().at("format_version"), 2);
  const LinearDelta e = ValueOrDie(delta->Linear(kE, {5, 4}, 6));
  ASSERT_TRUE(e.byte_rows && !e.rows);
  EXPECT_EQ(e.byte_rows->index, (std::vector<int32_t>{2, 5}));
  EXPECT_TRUE(std::ranges::equal(e.byte_rows->values.bytes, AsBytes(std::span<const int8_t>(sample.q))));
  EXPECT_EQ(FloatAt(e.byte_rows->step, 1), -0.25F);
  ExpectRefusal(delta->Linear(kE, {4, 4}, 6), StatusCode::kCorrupt, {"row 4 is not stored"});
  ExpectRefusal(delta->Linear(kE, {5, 4}, 5), StatusCode::kCorrupt, {"names row 5"});
  ExpectRefusal(delta->Linear(kE, {5, 3}, 6), StatusCode::kCorrupt, {".rows_q", "must be 3"});
  ExpectRefusal(delta->Vector(kE, 4), StatusCode::kCorrupt, {"vector"});
  const std::string sound = testing::ReadFile(path_ + "/delta_model.safetensors");
  ASSERT_TRUE(SoundAndOfTheSameBase(sound));
  for (size_t bit = 0; bit < 8 * sound.size(); ++bit) {
    const std::string flipped = Flip(sound, bit);
    if (!SoundAndOfTheSameBase(flipped)) continue;
    testing::WriteFile(path_ + "/delta_model.safetensors", flipped);
    EXPECT_FALSE(ValueOrDie(DeltaDirectory::Open(path_))->VerifyDigest().ok()) << "bit " << bit;
  }
}

TEST_F(DeltaTest, RefusesEverySingleBitFlipOfItsTensors) {
  Write();
  const auto sound_delta = ValueOrDie(DeltaDirectory::Open(path_));
  const std::string sound = testing::ReadFile(path_ + "/delta_model.safetensors");
  ASSERT_TRUE(SoundAndOfTheSameBase(sound));
  for (size_t bit = 0; bit < 8 * sound.size(); ++bit) {
    const std::string flipped = Flip(sound, bit);
    if (!SoundAndOfTheSameBase(flipped)) continue;
    // What is left are the digests of the side files: these no longer fit.
    testing::WriteFile(path_ + "/delta_model.safetensors", flipped);
    EXPECT_FALSE(ValueOrDie(DeltaDirectory::Open(path_))->VerifyDigest().ok()) << "bit " << bit;
  }
}

TEST_F(DeltaTest, RefusesBitFlipsOfItsConfig) {
  Write();
  const std::string sound = testing::ReadFile(path_ + "/config.json");
  for (size_t byte = 0; byte < sound.size(); byte += 5) {
    testing::WriteFile(path_ + "/config.json", Flip(sound, 8 * byte + byte % 8));
    const auto delta = DeltaDirectory::Open(path_);
    EXPECT_TRUE(!delta.ok() || !(*delta)->VerifyDigest().ok()) << "byte " << byte;
  }
}

TEST_F(DeltaTest, RefusesEveryTruncation) {
  Write();
  const std::string sound = testing::ReadFile(path_ + "/delta_model.safetensors");
  for (size_t n = 0; n < sound.size(); ++n) {
    EXPECT_FALSE(ParseSafetensors(AsBytes(std::string_view(sound).substr(0, n))).ok()) << n << " bytes";
    if (n % 64 != 0) continue;
    testing::WriteFile(path_ + "/delta_model.safetensors", std::string_view(sound).substr(0, n));
    EXPECT_FALSE(DeltaDirectory::Open(path_).ok()) << n << " bytes";
  }
}

TEST_F(DeltaTest, NamesTheDamagedFile) {
  Write();
  std::string tensors = testing::ReadFile(path_ + "/delta_model.safetensors");
  tensors.back() ^= 1;
  testing::WriteFile(path_ + "/delta_model.safetensors", tensors);
  ExpectRefusal(ValueOrDie(DeltaDirectory::Open(path_))->VerifyDigest(), StatusCode::kCorrupt, {path_, "digest"});
}

TEST_F(DeltaTest, SaysWhichFileIsMissing) {
  Write();
  for (const char* name : {"delta_config.json", "config.json", "delta_model.safetensors"}) {
    const std::string content = testing::ReadFile(path_ + "/" + name);
    fs::remove(path_ + "/" + name);
    ExpectRefusal(DeltaDirectory::Open(path_), StatusCode::kNotFound, {name});
    testing::WriteFile(path_ + "/" + name, content);
  }
  DF_EXPECT_OK(DeltaDirectory::Open(path_));
}

TEST_F(DeltaTest, ReadsShards) {
  WriteRaw({Zeros("model.norm.weight", DType::kF32, {4})}, Metadata());
  fs::rename(path_ + "/delta_model.safetensors", path_ + "/delta_model-00001-of-00002.safetensors");
  auto writer = ValueOrDie(SafetensorsWriter::Create(path_ + "/delta_model-00002-of-00002.safetensors",
                                                     {{"a.bias", DType::kF32, {0}}}, Metadata()));
  DF_ASSERT_OK(writer.Commit());
  testing::WriteFile(path_ + "/delta_model.safetensors.index.json",
                     R"({"weight_map":{"model.norm.weight":"delta_model-00001-of-00002.safetensors",
                         "a.bias":"delta_model-00002-of-00002.safetensors"}})");
  EXPECT_EQ(ValueOrDie(DeltaDirectory::Open(path_))->weights().size(), 2U);
}

TEST_F(DeltaTest, RefusesMetadataOfAnythingElseByKey) {
  struct Change {
    const char* key;
    const char* value;  // nullptr: removed
    StatusCode code;
  };
  for (const Change& change : {Change{"format", "other", StatusCode::kUnsupported},
                               {"format", nullptr, StatusCode::kCorrupt},
                               {"format_version", "3", StatusCode::kUnsupported},
                               {"format_version", nullptr, StatusCode::kCorrupt},
                               {"base_quant", "int8", StatusCode::kUnsupported},
                               {"base_quant", nullptr, StatusCode::kCorrupt},
                               {"sign_zero", "-1", StatusCode::kUnsupported},
                               {"sign_zero", nullptr, StatusCode::kCorrupt},
                               {"base_fingerprint", nullptr, StatusCode::kCorrupt},
                               {"content_digest", nullptr, StatusCode::kCorrupt}}) {
    SCOPED_TRACE(change.key);
    auto metadata = Metadata();
    metadata.erase(change.key);
    if (change.value != nullptr) metadata[change.key] = change.value;
    WriteRaw({}, metadata);
    ExpectRefusal(DeltaDirectory::Open(path_), change.code, {change.key});
  }
  for (const char* bad : {"", "xyz", "0123456789ABCDEF0123456789ABCDEF", "0123456789abcdef0123456789abcdef0"}) {
    auto metadata = Metadata();
    metadata["content_digest"] = bad;
    WriteRaw({}, metadata);
    ExpectRefusal(DeltaDirectory::Open(path_), StatusCode::kCorrupt, {"32 hex digits"});
  }
  auto metadata = Metadata();
  metadata["surprise"] = "x";
  WriteRaw({}, metadata);
  ExpectRefusal(DeltaDirectory::Open(path_), StatusCode::kUnsupported, {"surprise"});
  metadata = Metadata();
  metadata["file_digest:../../etc/passwd"] = kFingerprint;
  WriteRaw({}, metadata);
  ExpectRefusal(DeltaDirectory::Open(path_), StatusCode::kCorrupt, {"file_digest:../../etc/passwd"});
}

TEST_F(DeltaTest, ChangesItsGenerationWithConfigAndTemplate) {
  Write();
  const auto delta = ValueOrDie(DeltaDirectory::Open(path_));
  const std::string before = ValueOrDie(delta->Generation());
  testing::WriteFile(path_ + "/README.md", "other");
  EXPECT_EQ(ValueOrDie(delta->Generation()), before);
  testing::WriteFile(path_ + "/chat_template.jinja", "x");
  EXPECT_NE(ValueOrDie(delta->Generation()), before);
  fs::remove(path_ + "/chat_template.jinja");
  fs::create_directory(path_ + "/additional_chat_templates");
  EXPECT_EQ(ValueOrDie(delta->Generation()), before);
  testing::WriteFile(path_ + "/additional_chat_templates/tool_use.jinja", "x");
  EXPECT_NE(ValueOrDie(delta->Generation()), before);
  fs::remove_all(path_ + "/additional_chat_templates");
  testing::WriteFile(path_ + "/config.json", ConfigText() + " ");
  EXPECT_NE(ValueOrDie(delta->Generation()), before);
  ExpectRefusal(delta->VerifyDigest(), StatusCode::kCorrupt, {"config.json"});
}

TEST_F(DeltaTest, WriterRefusesWhatTheFormatCannotHold) {
  auto writer = ValueOrDie(DeltaWriter::Create(path_, {.base_fingerprint = kFingerprint}));
  const auto expect = [](const Status& status, std::initializer_list<std::string_view> words) {
    ExpectRefusal(status, StatusCode::kInvalidArgument, words);
  };
  const std::vector<uint8_t> four(4);
  expect(writer->Add("a.weight", DType::kF32, {2}, four), {"a.weight", "[2]", "4 bytes"});
  DF_EXPECT_OK(writer->Add("a.weight", DType::kF32, {1}, four));
  expect(writer->Add("a.weight", DType::kF32, {1}, four), {"a.weight", "already"});
  LinearDelta linear = sample_.Linear();
  linear.low_rank[0].scale = 2.0F;
  expect(writer->AddLinear(kW, linear), {kW, "scale"});
  linear = sample_.Linear();
  linear.gain_row = ViewOf(sample_.bias, {3});
  expect(writer->AddLinear(kW, linear), {kW, "gain"});
  linear = sample_.Linear();
  linear.planes[1].row_scale.reset();
  expect(writer->AddLinear(kW, linear), {kW, "differ"});
  linear = sample_.Linear();
  linear.planes[1].bits = linear.planes[1].bits.subspan(1);
  expect(writer->AddLinear(kW, linear), {kW, "5 bytes"});
  linear = sample_.Embedding();
  const testing::ByteRowSample bytes;
  linear.byte_rows = bytes.Embedding().byte_rows;
  expect(writer->AddLinear(kE, linear), {kE, "two ways"});
  for (const char* name : {"", "../x", "a/b", ".hidden", "delta_model.safetensors"})
    expect(writer->AddFile(name, ""), {});
  expect(writer->Commit(Json::object()), {"config.json"});
  ExpectRefusal(DeltaWriter::Create(directory_ / "other", {.base_fingerprint = "abc"}), StatusCode::kInvalidArgument,
                {"abc"});
}

TEST_F(DeltaTest, WriterPublishesNothingUnreadable) {
  {
    auto writer = ValueOrDie(DeltaWriter::Create(path_, {.base_fingerprint = kFingerprint}));
    LinearDelta linear = sample_.Linear();
    linear.planes[0].scale = std::numeric_limits<float>::quiet_NaN();
    DF_ASSERT_OK(writer->AddLinear(kW, linear));
    DF_ASSERT_OK(writer->AddFile("config.json", ConfigText()));
    ExpectRefusal(writer->Commit(Json::object()), StatusCode::kCorrupt, {kScale, "not finite"});
  }
  EXPECT_TRUE(fs::is_empty(directory_.path()));
}

TEST_F(DeltaTest, WriterReplacesOnlyWhenAsked) {
  Write();
  ExpectRefusal(DeltaWriter::Create(path_, {.base_fingerprint = kFingerprint}), StatusCode::kFailedPrecondition,
                {path_});
  auto writer = ValueOrDie(DeltaWriter::Create(path_, {.base_fingerprint = kFingerprint, .replace = true}));
  DF_ASSERT_OK(writer->AddFile("config.json", ConfigText()));
  DF_ASSERT_OK(writer->Commit(Json::object()));
  EXPECT_TRUE(ValueOrDie(DeltaDirectory::Open(path_))->weights().empty());
  EXPECT_EQ(std::distance(fs::directory_iterator(path_), fs::directory_iterator()), 3);
}

TEST(Digest, FramesItsItems) {
  Digest ab_c, a_bc, empty;
  ab_c.AddText("ab");
  ab_c.AddText("c");
  a_bc.AddText("a");
  a_bc.AddText("bc");
  EXPECT_NE(ab_c.Hex(), a_bc.Hex());
  EXPECT_EQ(empty.Hex(), "99aa06d3014798d86001c324468d497f");  // XXH3-128 of nothing, from the reference implementation
  EXPECT_TRUE(IsDigest(empty.Hex()));
}

}  // namespace
}  // namespace df
