#include "format/delta_tensors.h"

#include <gtest/gtest.h>

#include <limits>

#include "format/delta_fixture.h"

namespace df {
namespace {

using testing::DeltaTest;
using testing::ExpectRefusal;
using testing::kA;
using testing::kB;
using testing::kCol;
using testing::kIndex;
using testing::kRow;
using testing::kRows;
using testing::kRowsQ;
using testing::kScale;
using testing::kSign;
using testing::kStep;
using testing::kW;
using testing::ValueOrDie;

TEST_F(DeltaTest, RefusesUnknownSuffixes) {
  for (const std::string& name :
       {std::string(kW) + ".mask", std::string("model.sign"), std::string(kW) + ".scale.extra", std::string(".sign"),
        std::string("x.bias.sign"), std::string("")}) {
    WriteRaw({Zeros(name, DType::kU8, {1, 1, 1})}, Metadata());
    ExpectRefusal(DeltaDirectory::Open(path_), StatusCode::kUnsupported, {"tensor", "suffix"});
  }
}

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
  ExpectBadTensors({Zeros(kRows, DType::kI8, {1, 10}), Ints(kIndex, {1})}, {kRows, "F32, BF16 or F16", "I8"});
  ExpectBadTensors({Zeros(kRows, DType::kF32, {10}), Ints(kIndex, {1})}, {kRows});
  ExpectBadTensors({Zeros(kIndex, DType::kI64, {1}), Zeros(kRows, DType::kF32, {1, 10})}, {kIndex, "I64"});
  ExpectBadTensors({Zeros(kW, DType::kI32, {3, 10})}, {kW, "I32"});
}

TEST_F(DeltaTest, RefusesByteRowsThatAreNotWhole) {
  const Tensor q = Zeros(kRowsQ, DType::kI8, {2, 10}), step = Zeros(kStep, DType::kF32, {2});
  const Tensor index = Ints(kIndex, {0, 2});
  ExpectBadTensors({index, step}, {kW, ".rows_step", "no .rows_q"});
  ExpectBadTensors({index, q}, {kW, ".rows_q", "no .rows_step"});
  ExpectBadTensors({step, q}, {kW, ".rows_q", "no .rows_index"});
  ExpectBadTensors({index, step, Zeros(kRows, DType::kF32, {2, 10}), q}, {kW, "both .rows and .rows_q"});
  ExpectBadTensors({index, step, Zeros(kW, DType::kF32, {3, 10}), q}, {"both replaced and coded"});
  ExpectBadTensors({index, step, Zeros(kRowsQ, DType::kU8, {2, 10})}, {kRowsQ, "I8", "U8"});
  ExpectBadTensors({index, step, Zeros(kRowsQ, DType::kI8, {3, 10})}, {kRowsQ, "[2, d_in]", "[3, 10]"});
  ExpectBadTensors({index, step, Zeros(kRowsQ, DType::kI8, {20})}, {kRowsQ, "[2, d_in]"});
  ExpectBadTensors({index, Zeros(kStep, DType::kF32, {3}), q}, {kStep, "F32 [2]", "[3]"});
  ExpectBadTensors({index, Zeros(kStep, DType::kBf16, {2}), q}, {kStep, "F32 [2]", "BF16"});
  ExpectBadTensors({index, Floats(kStep, {2}, {1, std::numeric_limits<float>::infinity()}), q}, {kStep, "element 1"});
  ExpectBadTensors({Ints(kIndex, {2, 2}), step, q}, {kIndex, "must increase", "2 after 2"});
  ExpectBadTensors({Zeros(kCol, DType::kF32, {1, 16}), index, step, q, Zeros(kSign, DType::kU8, {1, 3, 2})},
                   {kRowsQ, "[2, 16]"});
}

TEST_F(DeltaTest, KnowsByteRowsFromVersionTwoOn) {
  std::map<std::string, std::string> metadata = Metadata();
  const std::vector<Tensor> tensors = {Ints(kIndex, {0, 2}), Zeros(kStep, DType::kF32, {2}),
                                       Zeros(kRowsQ, DType::kI8, {2, 10})};
  WriteRaw(tensors, metadata);
  ExpectRefusal(DeltaDirectory::Open(path_), StatusCode::kUnsupported, {".rows_", "version 1"});
  metadata["format_version"] = "2";
  WriteRaw(tensors, metadata);
  DF_ASSERT_OK(DeltaDirectory::Open(path_));
  for (const char* version : {"3", "0", "02", "", "1.0", "-1"}) {
    metadata["format_version"] = version;
    WriteRaw(tensors, metadata);
    ExpectRefusal(DeltaDirectory::Open(path_), StatusCode::kUnsupported, {"format_version", version});
  }
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

// A sparse file may claim terabytes of zeros: they are not read.
TEST_F(DeltaTest, RefusesScalesLongerThanAnySideOfTheModel) {
  const size_t n = 1'000'000;
  ExpectBadTensors({Zeros(kRow, DType::kF32, {1, n}), Zeros(kSign, DType::kU8, {1, n, 2})}, {kRow, "config.json"});
  ExpectBadTensors({Zeros(kCol, DType::kF32, {1, n}), Zeros(kSign, DType::kU8, {1, 3, n / 8})}, {kCol, "config.json"});
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

}  // namespace
}  // namespace df
