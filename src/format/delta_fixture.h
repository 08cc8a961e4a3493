// The sample delta and the raw writer that the tests of delta directories share.
#ifndef DELTAFOLD_FORMAT_DELTA_FIXTURE_H_
#define DELTAFOLD_FORMAT_DELTA_FIXTURE_H_

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "format/delta_dir.h"
#include "testing/refusal.h"
#include "testing/temporary_directory.h"

namespace df::testing {

inline constexpr char kFingerprint[] = "0123456789abcdef0123456789abcdef";
inline constexpr char kW[] = "model.layers.0.mlp.up_proj.weight";  // [3, 10] in these tests
inline constexpr char kE[] = "model.embed_tokens.weight";          // [5, 4] in the base, 6 rows in the variant

inline std::string ConfigText() { return ReadFile(DELTAFOLD_SOURCE_DIR "/tests/hostile/model/ok/config.json"); }

inline TensorView ViewOf(const std::vector<float>& values, Shape shape) {
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

// What version 2 added: rows of bytes, of an embedding that grew by one row.
struct ByteRowSample {
  std::vector<int8_t> q = {1, -2, 3, -4, 127, -127, 0, 5};
  std::vector<float> step = {0.5F, -0.25F};

  LinearDelta Embedding() const {
    LinearDelta delta{.d_out = 6, .d_in = 4};
    delta.byte_rows = ByteRows{.index = {2, 5},
                               .values = {DType::kI8, {2, 4}, AsBytes(std::span<const int8_t>(q))},
                               .step = ViewOf(step, {2})};
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
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
    WriteFile(path_ + "/config.json", ConfigText());
    WriteFile(path_ + "/delta_config.json", "{}");
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
    std::map<std::string, std::string> metadata = Metadata();
    metadata["format_version"] = "2";  // all parts
    WriteRaw(tensors, metadata);
    ExpectRefusal(DeltaDirectory::Open(path_), StatusCode::kCorrupt, words);
  }

  TemporaryDirectory directory_;
  std::string path_ = directory_ / "delta";
  Sample sample_;
};

// The parts of kW.
inline const std::string kSign = std::string(kW) + ".sign", kScale = std::string(kW) + ".scale",
                         kRow = std::string(kW) + ".scale_row", kCol = std::string(kW) + ".scale_col",
                         kA = std::string(kW) + ".lora_A", kB = std::string(kW) + ".lora_B",
                         kRows = std::string(kW) + ".rows", kIndex = std::string(kW) + ".rows_index",
                         kRowsQ = std::string(kW) + ".rows_q", kStep = std::string(kW) + ".rows_step";

}  // namespace df::testing

#endif  // DELTAFOLD_FORMAT_DELTA_FIXTURE_H_
