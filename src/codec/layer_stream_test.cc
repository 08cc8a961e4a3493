#include "codec/layer_stream.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "model/layer_names.h"
#include "testing/made_checkpoint.h"
#include "testing/refusal.h"

namespace df {
namespace {

using testing::ExpectRefusal;
using testing::Floats;
using testing::MadeModel;
using testing::TemporaryDirectory;
using testing::ValueOrDie;
using testing::WriteModel;

class LayerStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    WriteModel({}, directory_.Sub("base"));
    WriteModel({.change = 0.2}, directory_.Sub("fine-tune"));
    base_ = ValueOrDie(Checkpoint::Open(directory_.Sub("base")));
    fine_tune_ = ValueOrDie(Checkpoint::Open(directory_.Sub("fine-tune")));
    calibration_ = {.context = &context_, .sequences = {{1, 5, 9, 2, 17}, {3, 3, 8}, {19}}};
  }

  std::unique_ptr<LayerStream> Stream() { return ValueOrDie(LayerStream::Create(*base_, *fine_tune_, calibration_)); }
  LinearDelta Raw(const std::string& name) const {
    LinearDelta delta;
    const TensorView& view = fine_tune_->FindOrNull(name)->view;
    delta.d_out = view.shape[0];
    delta.d_in = view.shape[1];
    delta.raw = view;
    return delta;
  }
  LinearDelta Nothing(const std::string& name) const {
    LinearDelta delta = Raw(name);
    delta.raw.reset();
    return delta;
  }

  KernelContext context_{2};
  TemporaryDirectory directory_;
  std::shared_ptr<const Checkpoint> base_, fine_tune_;
  Calibration calibration_;
};

double LargestDifference(MatView<const float> a, MatView<const float> b) {
  double worst = 0;
  for (size_t row = 0; row < a.rows; ++row) {
    for (size_t j = 0; j < a.cols; ++j) {
      worst = std::max(worst, std::fabs(double{a.Row(row)[j]} - double{b.Row(row)[j]}));
    }
  }
  return worst;
}

TEST_F(LayerStreamTest, ShowsEveryMatrixOfEveryLayerInOrder) {
  const auto stream = Stream();
  EXPECT_EQ(stream->n_tokens(), 9U);
  const ModelConfig& config = fine_tune_->config();
  for (int pass = 0; pass < 2; ++pass) {
    stream->Begin(nullptr);
    for (size_t layer = 0; layer < config.n_layers; ++layer) {
      size_t next = 0;
      const Status run = stream->RunLayer([&](LinearSlot slot, const WeightInputs& inputs) {
        EXPECT_EQ(static_cast<size_t>(slot), next++);
        EXPECT_EQ(inputs.coded.rows, 9U);
        EXPECT_EQ(inputs.coded.cols, DimsOf(config, slot).d_in);
        EXPECT_FALSE(inputs.HasDrift());
        EXPECT_TRUE(inputs.HasMoment());
        return Status::Ok();
      });
      DF_ASSERT_OK(run);
      EXPECT_EQ(next, kLinearSlots);
    }
  }
}

TEST_F(LayerStreamTest, BeginsWithTheNormedEmbeddingsOfTheFineTune) {
  const auto stream = Stream();
  stream->Begin(nullptr);
  const std::vector<float> table = Floats(fine_tune_->FindOrNull(kEmbeddingName)->view);
  const std::vector<float> norm = Floats(fine_tune_->FindOrNull(NormName(0, NormSlot::kAttention))->view);
  const Status run = stream->RunLayer([&](LinearSlot slot, const WeightInputs& inputs) {
    if (slot != LinearSlot::kQ) return Status::Ok();
    size_t row = 0;
    for (const std::vector<int32_t>& sequence : calibration_.sequences) {
      for (const int32_t id : sequence) {
        const float* x = table.data() + static_cast<size_t>(id) * 16;
        double squares = 0;
        for (size_t j = 0; j < 16; ++j) squares += double{x[j]} * double{x[j]} / 16;
        for (size_t j = 0; j < 16; ++j) {
          const double expected = double{x[j]} / std::sqrt(squares + 1e-6) * double{norm[j]};
          EXPECT_NEAR(double{inputs.fine_tune.Row(row)[j]}, expected, 1e-6) << row;
        }
        ++row;
      }
    }
    return Status::Ok();
  });
  DF_ASSERT_OK(run);
}

TEST_F(LayerStreamTest, AModelThatIsCodedExactlyDoesNotDrift) {
  const auto stream = Stream();
  const LinearDelta embedding = Raw(kEmbeddingName);
  stream->Begin(&embedding);
  for (size_t layer = 0; layer < 2; ++layer) {
    const Status run = stream->RunLayer([&](LinearSlot slot, const WeightInputs& inputs) {
      EXPECT_LT(LargestDifference(inputs.fine_tune, inputs.coded), 1e-5) << layer;
      stream->Take(slot, Raw(WeightName(layer, slot)));
      return Status::Ok();
    });
    DF_ASSERT_OK(run);
  }
}

TEST_F(LayerStreamTest, WhatIsTakenMovesTheInputsBehindItAlone) {
  const auto stream = Stream();
  const LinearDelta embedding = Raw(kEmbeddingName);
  stream->Begin(&embedding);
  const Status run = stream->RunLayer([&](LinearSlot slot, const WeightInputs& inputs) {
    // Keys and values of the base alone: the attention's output differs, the inputs before it do not.
    const bool is_before = slot == LinearSlot::kQ || slot == LinearSlot::kK || slot == LinearSlot::kV;
    const double difference = LargestDifference(inputs.fine_tune, inputs.coded);
    if (is_before) {
      EXPECT_LT(difference, 1e-6);
    } else {
      EXPECT_GT(difference, 1e-3);
      EXPECT_TRUE(inputs.HasDrift());
    }
    const std::string name = WeightName(0, slot);
    stream->Take(slot, is_before ? Nothing(name) : Raw(name));
    return Status::Ok();
  });
  DF_ASSERT_OK(run);
}

TEST_F(LayerStreamTest, EndsWithTheFirstError) {
  const auto stream = Stream();
  stream->Begin(nullptr);
  size_t n_calls = 0;
  const Status status = stream->RunLayer([&](LinearSlot slot, const WeightInputs&) {
    ++n_calls;
    return slot == LinearSlot::kK ? Cancelled("enough") : Status::Ok();
  });
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_EQ(n_calls, 2U);
}

TEST_F(LayerStreamTest, LeavesOutWhatItsMemoryDoesNotHold) {
  calibration_.sequences = TokenSequences(10, std::vector<int32_t>(20, 4));
  calibration_.max_bytes = 2 * StateBytes(fine_tune_->config(), 70);
  EXPECT_EQ(Stream()->n_tokens(), 60U);
  calibration_.max_bytes = 1;
  const auto stream = Stream();
  EXPECT_EQ(stream->n_tokens(), 20U) << "one sequence at least";
  stream->Begin(nullptr);
  const Status run = stream->RunLayer([&](LinearSlot, const WeightInputs& inputs) {
    EXPECT_FALSE(inputs.HasMoment());
    return Status::Ok();
  });
  DF_ASSERT_OK(run);
}

TEST_F(LayerStreamTest, RefusesTokensThatTheModelDoesNotTake) {
  const auto refusal = [&](TokenSequences sequences) {
    calibration_.sequences = std::move(sequences);
    const auto stream = LayerStream::Create(*base_, *fine_tune_, calibration_);
    return stream.ok() ? Status::Ok() : stream.status();
  };
  ExpectRefusal(refusal({}), StatusCode::kInvalidArgument, {"no token"});
  ExpectRefusal(refusal({{1}, {}}), StatusCode::kInvalidArgument, {"no token"});
  ExpectRefusal(refusal({{1, 20}}), StatusCode::kInvalidArgument, {"20", "vocabulary of 20"});
  ExpectRefusal(refusal({{-1}}), StatusCode::kInvalidArgument, {"-1"});
  ExpectRefusal(refusal({std::vector<int32_t>(129, 1)}), StatusCode::kInvalidArgument, {"129", "128"});
}

}  // namespace
}  // namespace df
