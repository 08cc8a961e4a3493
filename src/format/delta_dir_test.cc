#include "format/delta_dir.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "format/delta_tensors.h"
#include "format/digest.h"
#include "testing/refusal.h"
#include "testing/temporary_directory.h"

namespace df {
namespace {

namespace fs = std::filesystem;
using testing::ExpectRefusal;
using testing::TemporaryDirectory;
using testing::ValueOrDie;

constexpr char kFingerprint[] = "0123456789abcdef0123456789abcdef";
constexpr char kW[] = "model.layers.0.mlp.up_proj.weight";  // [3, 10] in these tests
constexpr char kE[] = "model.embed_tokens.weight";          // [5, 4] in the base, 6 rows in the variant

std::string ConfigText() { return testing::ReadFile(DELTAFOLD_SOURCE_DIR "/tests/hostile/model/ok/config.json"); }

TensorView ViewOf(const std::vector<float>& values, Shape shape) {
  return {DType::kF32, shape, AsBytes(std::span<const float>(values))};
}

// One delta with every kind of part.
struct Sample {
  std::vector<uint8_t> bits = {0xFF, 0x01, 0x0F, 0x02, 0x55, 0x03, 0x00, 0x00, 0xAA, 0x02, 0x11, 0x01};
  std::vector<float> rows = {0.5F, 1.5F, -2.0F, 1.0F, 2.0F, 3.0F}, cols = std::vector<float>(20, 0.25F);
  std::vector<float> a = std::vector<float>(20, 0.125F), b = {1, 2, 3, 4, 5, 6};
  std::vector<float> new_rows = {1, 2, 3, 4, 5, 6, 7, 8}, norm = {1, 1, 1, 1}, bias = {7, 8, 9};

  LinearDelta Linear() const {
    LinearDelta delta{.d_out = 3, .d_in = 10};
    for (size_t p = 0; p < 2; ++p) {
      SignPlane plane{.bits = Bytes(bits).subspan(6 * p, 6), .scale = p == 0 ? 2.0F : -1.0F};
      plane.row_scale = ViewOf(rows, {2, 3});
      plane.row_scale = {DType::kF32, {3}, plane.row_scale->bytes.subspan(12 * p, 12)};
      plane.col_scale = {DType::kF32, {10}, ViewOf(cols, {2, 10}).bytes.subspan(40 * p, 40)};
      delta.planes.push_back(plane);
    }
    delta.low_rank.push_back({.a = ViewOf(a, {2, 10}), .b = ViewOf(b, {3, 2})});
    delta.bias = ViewOf(bias, {3});
    return delta;
  }
  LinearDelta Embedding() const {
    LinearDelta delta{.d_out = 6, .d_in = 4};
    delta.rows = ReplacedRows{.index = {2, 5}, .values = ViewOf(new_rows, {2, 4})};
    return delta;
  }
};

class DeltaTest : public ::testing::Test {
 protected:
  void Write() {
    auto writer = ValueOrDie(DeltaWriter::Create(path_, {.base_fingerprint = kFingerprint, .base_name = "org/base"}));
    DF_ASSERT_OK(writer->AddLinear(kW, sample_.Linear()));
    DF_ASSERT_OK(writer->AddLinear(kE, sample_.Embedding()));
    DF_ASSERT_OK(writer->Add("model.norm.weight", DType::kF32, {4}, AsBytes(std::span<const float>(sample_.norm))));
    DF_ASSERT_OK(writer->AddFile("config.json", ConfigText()));
    DF_ASSERT_OK(writer->AddFile("README.md", "# model card\n"));
    DF_ASSERT_OK(writer->Commit(ValueOrDie(ParseJson(R"({"codec":{"kind":"sign"},"format":"other"})"))));
  }
  // A delta directory whose tensors and metadata are written as given, without any check.
  void WriteRaw(const std::vector<std::pair<TensorSpec, std::vector<uint8_t>>>& tensors,
                std::map<std::string, std::string> metadata) {
    fs::remove_all(path_);
    fs::create_directories(path_);
    testing::WriteFile(path_ + "/config.json", ConfigText());
    testing::WriteFile(path_ + "/delta_config.json", "{}");
    std::vector<TensorSpec> specs;
    for (const auto& [spec, data] : tensors) specs.push_back(spec);
    auto writer = ValueOrDie(SafetensorsWriter::Create(path_ + "/delta_model.safetensors", specs, metadata));
    for (const auto& [spec, data] : tensors) DF_ASSERT_OK(writer.Write(data));
    DF_ASSERT_OK(writer.Commit());
  }
  static std::map<std::string, std::string> Metadata() {
    return {{"format", "deltafold"}, {"format_version", "1"}, {"base_fingerprint", kFingerprint},
            {"base_quant", "none"},  {"sign_zero", "+1"},     {"content_digest", kFingerprint}};
  }
  using Tensor = std::pair<TensorSpec, std::vector<uint8_t>>;
  static Tensor Zeros(const std::string& name, DType dtype, Shape shape) {
    return {{name, dtype, shape}, std::vector<uint8_t>(*shape.TryElements() * DTypeBytes(dtype))};
  }
  static Tensor Floats(const std::string& name, Shape shape, const std::vector<float>& values) {
    const Bytes bytes = AsBytes(std::span<const float>(values));
    return {{name, DType::kF32, shape}, {bytes.begin(), bytes.end()}};
  }
  static Tensor Ints(const std::string& name, const std::vector<int32_t>& values) {
    const Bytes bytes = AsBytes(std::span<const int32_t>(values));
    return {{name, DType::kI32, {values.size()}}, {bytes.begin(), bytes.end()}};
  }
  void ExpectBadTensors(const std::vector<Tensor>& tensors, std::initializer_list<std::string_view> words) {
    WriteRaw(tensors, Metadata());
    ExpectRefusal(DeltaDirectory::Open(path_), StatusCode::kCorrupt, words);
  }

  TemporaryDirectory directory_;
  std::string path_ = directory_ / "delta";
  Sample sample_;
};

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
  return metadata.ok() && internal::CheckDeltaTensors(tensors).ok() &&
         internal::ContentDigest(tensors) == metadata->content_digest && metadata->base_fingerprint == kFingerprint;
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
  for (size_t byte = 0; byte < sound.size(); ++byte) {
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
                               {"format_version", "2", StatusCode::kUnsupported},
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

TEST_F(DeltaTest, RefusesUnknownSuffixes) {
  for (const std::string& name :
       {std::string(kW) + ".mask", std::string("model.sign"), std::string(kW) + ".scale.extra", std::string(".sign"),
        std::string("x.bias.sign"), std::string("")}) {
    WriteRaw({Zeros(name, DType::kU8, {1, 1, 1})}, Metadata());
    ExpectRefusal(DeltaDirectory::Open(path_), StatusCode::kUnsupported, {"tensor", "suffix"});
  }
}

const std::string kSign = std::string(kW) + ".sign", kScale = std::string(kW) + ".scale",
                  kRow = std::string(kW) + ".scale_row", kCol = std::string(kW) + ".scale_col",
                  kA = std::string(kW) + ".lora_A", kB = std::string(kW) + ".lora_B", kRows = std::string(kW) + ".rows",
                  kIndex = std::string(kW) + ".rows_index";

TEST_F(DeltaTest, RefusesIncompleteGroups) {
  const Tensor sign = Zeros(kSign, DType::kU8, {1, 3, 2}), scale = Zeros(kScale, DType::kF32, {1});
  ExpectBadTensors({sign}, {kW, "no .scale"});
  ExpectBadTensors({scale}, {kW, "no .sign"});
  ExpectBadTensors({Zeros(kA, DType::kF32, {2, 10})}, {"no .lora_B"});
  ExpectBadTensors({Zeros(kB, DType::kF32, {3, 2})}, {"no .lora_A"});
  ExpectBadTensors({Zeros(kRows, DType::kF32, {1, 10})}, {"no .rows_index"});
  ExpectBadTensors({Ints(kIndex, {1})}, {"no .rows"});
  ExpectBadTensors({scale, Zeros(kW, DType::kF32, {3, 10}), sign}, {"both replaced and coded"});
}

TEST_F(DeltaTest, RefusesPartsWhoseShapesDisagree) {
  const Tensor sign = Zeros(kSign, DType::kU8, {2, 3, 2}), scale = Zeros(kScale, DType::kF32, {2});
  ExpectBadTensors({scale, Zeros(kSign, DType::kI8, {2, 3, 2})}, {kSign, "U8", "I8"});
  ExpectBadTensors({scale, Zeros(kSign, DType::kU8, {3, 2})}, {kSign, "[3, 2]"});
  ExpectBadTensors({scale, Zeros(kSign, DType::kU8, {0, 3, 2})}, {kSign, "1 to 16 planes"});
  ExpectBadTensors({Zeros(kScale, DType::kF32, {17}), Zeros(kSign, DType::kU8, {17, 3, 2})}, {kSign, "1 to 16 planes"});
  ExpectBadTensors({Zeros(kScale, DType::kF32, {3}), sign}, {kScale, "[2]", "[3]"});
  ExpectBadTensors({Zeros(kScale, DType::kBf16, {2}), sign}, {kScale, "F32", "BF16"});
  ExpectBadTensors({Zeros(kRow, DType::kF32, {2, 4}), sign}, {kRow, "[2, 3]", "[2, 4]"});
  ExpectBadTensors({Zeros(kRow, DType::kF32, {3}), sign}, {kRow, "[2, 3]"});
  ExpectBadTensors({Zeros(kRow, DType::kF16, {2, 3}), sign}, {kRow, "F16"});
  ExpectBadTensors({Zeros(kCol, DType::kF32, {2, 17}), sign}, {kCol, "2 bytes"});
  ExpectBadTensors({Zeros(kCol, DType::kF32, {1, 10}), sign}, {kCol, "[2, 10]"});
  ExpectBadTensors({Zeros(kA, DType::kF32, {2, 10}), Zeros(kB, DType::kF32, {3, 4})}, {kB, "[d_out, 2]"});
  ExpectBadTensors({Zeros(kA, DType::kF32, {0, 10}), Zeros(kB, DType::kF32, {3, 0})}, {kA});
  ExpectBadTensors({Zeros(kA, DType::kI32, {2, 10}), Zeros(kB, DType::kF32, {3, 2})}, {kA, "I32"});
  ExpectBadTensors({Zeros(kA, DType::kF32, {2, 20}), Zeros(kB, DType::kF32, {3, 2}), scale, sign}, {kA, "2 bytes"});
  ExpectBadTensors({Zeros(kA, DType::kF32, {2, 10}), Zeros(kB, DType::kF32, {4, 2}), scale, sign}, {kB, "[3, 2]"});
  ExpectBadTensors({Zeros(kRows, DType::kF32, {2, 10}), Ints(kIndex, {1})}, {kRows, "[1, d_in]"});
  ExpectBadTensors({Zeros(kRows, DType::kF32, {10}), Ints(kIndex, {1})}, {kRows});
  ExpectBadTensors({Zeros(kIndex, DType::kI64, {1}), Zeros(kRows, DType::kF32, {1, 10})}, {kIndex, "I64"});
  ExpectBadTensors({Zeros(kW, DType::kI32, {3, 10})}, {kW, "I32"});
}

TEST_F(DeltaTest, RefusesScalesThatAreNotFinite) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const Tensor sign = Zeros(kSign, DType::kU8, {1, 3, 2});
    ExpectBadTensors({Floats(kScale, {1}, {bad}), sign}, {kScale, "not finite", "element 0"});
    ExpectBadTensors({Floats(kRow, {1, 3}, {1, 2, bad}), sign}, {kRow, "element 2"});
    std::vector<float> cols(10, 1.0F);
    cols[7] = -bad;
    ExpectBadTensors({Floats(kCol, {1, 10}, cols), sign}, {kCol, "element 7"});
  }
}

TEST_F(DeltaTest, RefusesRowIndicesThatDoNotIncrease) {
  for (const std::vector<int32_t>& index : std::vector<std::vector<int32_t>>{{1, 1}, {2, 1}, {-1, 0}, {INT32_MIN, 3}}) {
    ExpectBadTensors({Zeros(kRows, DType::kF32, {2, 10}), Ints(kIndex, index)}, {kIndex, "must increase"});
  }
}

// Opens a delta with these tensors and asks for a weight of shape [3, 10] in the base.
class DeltaLinearTest : public DeltaTest {
 protected:
  Result<LinearDelta> LinearWith(const std::vector<Tensor>& tensors, ShapeOfWeight base, size_t d_out) {
    WriteRaw(tensors, Metadata());
    delta_ = ValueOrDie(DeltaDirectory::Open(path_));
    return delta_->Linear(kW, base, d_out);
  }
  std::shared_ptr<const DeltaDirectory> delta_;
};

TEST_F(DeltaLinearTest, RefusesAnotherShapeNamingBoth) {
  const std::vector<Tensor> signs = {Zeros(kScale, DType::kF32, {1}), Zeros(kSign, DType::kU8, {1, 3, 2})};
  DF_EXPECT_OK(LinearWith(signs, {3, 10}, 3));
  ExpectRefusal(LinearWith(signs, {4, 10}, 4), StatusCode::kCorrupt, {kSign, "[1, 3, 2]", "4"});
  ExpectRefusal(LinearWith(signs, {3, 17}, 3), StatusCode::kCorrupt, {kSign, "dimension 2 must be 3"});
  const std::vector<Tensor> low_rank = {Zeros(kA, DType::kBf16, {2, 10}), Zeros(kB, DType::kF16, {3, 2})};
  DF_EXPECT_OK(LinearWith(low_rank, {3, 10}, 3));
  ExpectRefusal(LinearWith(low_rank, {3, 11}, 3), StatusCode::kCorrupt, {kA, "11"});
  ExpectRefusal(LinearWith(low_rank, {5, 10}, 5), StatusCode::kCorrupt, {kB, "5"});
  const std::vector<Tensor> raw = {Zeros(kW, DType::kBf16, {10, 3})};
  ExpectRefusal(LinearWith(raw, {3, 10}, 3), StatusCode::kCorrupt, {kW, "[10, 3]", "[3, 10]"});
  ExpectRefusal(LinearWith({Zeros(kCol, DType::kF32, {1, 10}), Zeros(kSign, DType::kU8, {1, 3, 2})}, {3, 9}, 3),
                StatusCode::kCorrupt, {kCol, "9"});
  ExpectRefusal(LinearWith({Zeros(kRows, DType::kF32, {1, 10}), Ints(kIndex, {0})}, {3, 8}, 3), StatusCode::kCorrupt,
                {kRows, "8"});
}

TEST_F(DeltaLinearTest, RefusesPaddingBits) {
  Tensor sign = Zeros(kSign, DType::kU8, {1, 3, 2});
  sign.second[3] = 0x04;  // row 1, column 10 of 10
  ExpectRefusal(LinearWith({Zeros(kScale, DType::kF32, {1}), sign}, {3, 10}, 3), StatusCode::kCorrupt,
                {kSign, "row 1"});
  DF_EXPECT_OK(delta_->Linear(kW, {3, 11}, 3));
}

TEST_F(DeltaLinearTest, WantsEveryNewRow) {
  DF_EXPECT_OK(LinearWith({Zeros(kRows, DType::kF32, {3, 10}), Ints(kIndex, {0, 3, 4})}, {3, 10}, 5));
  ExpectRefusal(LinearWith({Zeros(kRows, DType::kF32, {2, 10}), Ints(kIndex, {0, 4})}, {3, 10}, 5),
                StatusCode::kCorrupt, {"from 3 to 5", "row 3"});
  ExpectRefusal(LinearWith({}, {3, 10}, 4), StatusCode::kCorrupt, {"from 3 to 4", "row 3"});
  ExpectRefusal(LinearWith({Zeros(kRows, DType::kF32, {1, 10}), Ints(kIndex, {5})}, {3, 10}, 5), StatusCode::kCorrupt,
                {kIndex, "row 5", "has 5"});
  DF_EXPECT_OK(LinearWith({Zeros(kW, DType::kF32, {5, 10})}, {3, 10}, 5));
}

TEST_F(DeltaLinearTest, LetsAVocabularyShrink) {
  const LinearDelta delta = ValueOrDie(LinearWith({}, {3, 10}, 2));
  EXPECT_EQ(delta.d_out, 2U);
  EXPECT_TRUE(delta.IsBase());
}

TEST_F(DeltaLinearTest, RefusesACodedVector) {
  DF_EXPECT_OK(LinearWith({Zeros(kScale, DType::kF32, {1}), Zeros(kSign, DType::kU8, {1, 3, 2})}, {3, 10}, 3));
  ExpectRefusal(delta_->Vector(kW, 3), StatusCode::kCorrupt, {kW, "only be replaced"});
  WriteRaw({Zeros("n.weight", DType::kF32, {4, 1})}, Metadata());
  ExpectRefusal(ValueOrDie(DeltaDirectory::Open(path_))->Vector("n.weight", 4), StatusCode::kCorrupt,
                {"[4, 1]", "[4]"});
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
