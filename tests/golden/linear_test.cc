// Single linear layers against f64 products of the reference (tests/golden/deltas/linear).
#include "kernels/linear.h"

#include "golden_fixtures.h"

namespace df::kernels {
namespace {

using testing::GoldenPath;
using testing::ReadAll;

std::shared_ptr<const SafetensorsFile> OpenLayer(const std::string& name) {
  auto file = SafetensorsFile::Open(GoldenPath("deltas/linear/" + name));
  EXPECT_TRUE(file.ok()) << file.status().message();
  return std::move(file).value();
}

PackedDelta PackSigns(KernelContext& context, const SafetensorsFile& file, const std::string& suffix) {
  const TensorView& weight = *file.FindOrNull("weight");
  LinearDelta delta;
  delta.d_out = weight.shape[0];
  delta.d_in = weight.shape[1];
  delta.planes.push_back({.bits = file.FindOrNull("bits" + suffix)->bytes,
                          .scale = 1.0F,
                          .row_scale = *file.FindOrNull("alpha_row" + suffix),
                          .col_scale = {}});
  return PackDelta(context, delta);
}

// What each row must stay within: (n + 2) * 2^-24 * sum |x| |w|, |w| <= |base| + alpha.
void ExpectWithin(const PackedWeight& base, const PackedDelta* delta, const float* x, const float* y, const float* want,
                  const std::string& what) {
  const double unit = static_cast<double>(base.d_in + 2) * 0x1.0p-24;
  for (size_t out = 0; out < base.d_out; ++out) {
    double magnitude = 0;
    for (size_t k = 0; k < base.d_in; ++k) {
      const double alpha = delta != nullptr ? std::fabs(delta->planes[0].row_scale[out]) : 0.0F;
      magnitude += std::fabs(x[k]) * (std::fabs(base.At(out, k)) + alpha);
    }
    ASSERT_LE(std::fabs(y[out] - want[out]), unit * magnitude) << what << " output " << out;
  }
}

template <typename Body>
void OnEveryTargetAndPhase(const Body& body) {
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    body(Phase::kDecode, target + " decode");
    body(Phase::kPrefill, target + " prefill");
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

TEST(LinearGolden, SignsWithRowScalesMatchTheReferenceForEveryBatch) {
  size_t n_batches = 0;
  for (const std::string name : {"out1_in1", "out33_in7", "out64_in64", "out72_in100", "out256_in96", "out512_in130"}) {
    const auto file = OpenLayer(name + ".safetensors");
    KernelContext context(1);
    OnEveryTargetAndPhase([&](Phase phase, const std::string& what) {
      LinearWeight base;
      base.weight = PackWeight(context, *file->FindOrNull("weight"));
      const PackedDelta delta = PackSigns(context, *file, "");
      for (const std::string batch : {"m1", "m3", "m8", "m33", "m3_outlier"}) {
        const TensorView* stored = file->FindOrNull("x_" + batch);
        if (stored == nullptr) continue;
        const size_t n = stored->shape[0];
        const std::vector<float> x = ReadAll(*file, "x_" + batch), want = ReadAll(*file, "y_" + batch);
        Mat<float> y(n, base.weight.d_out);
        const LinearSegment segment = {.begin = 0, .end = n, .phase = phase, .delta = &delta};
        Linear(context, base, {&segment, 1}, {x.data(), n, base.weight.d_in}, y.view());
        for (size_t row = 0; row < n; ++row) {
          ExpectWithin(base.weight, &delta, x.data() + row * base.weight.d_in, y.Row(row),
                       want.data() + row * base.weight.d_out, name + " " + batch + " " + what);
        }
        ++n_batches;
      }
    });
  }
  EXPECT_GE(n_batches, 28u * 2u);  // 28 batches, two phases, one target at least
}

TEST(LinearGolden, AMixedBatchMatchesTheReference) {
  const auto file = OpenLayer("mixed_batch.safetensors");
  const std::vector<float> x = ReadAll(*file, "x"), want = ReadAll(*file, "y");
  KernelContext context(2);
  const std::vector<int32_t> variant = testing::ReadIds(*file, "variant");
  OnEveryTargetAndPhase([&](Phase phase, const std::string& what) {
    LinearWeight base;
    base.weight = PackWeight(context, *file->FindOrNull("weight"));
    std::vector<PackedDelta> deltas;
    for (const std::string suffix : {"_0", "_1", "_2"}) deltas.push_back(PackSigns(context, *file, suffix));
    const auto delta_of = [&](size_t row) {
      return variant[row] < 0 ? nullptr : &deltas[static_cast<size_t>(variant[row])];
    };
    std::vector<LinearSegment> segments;
    for (size_t row = 0; row < variant.size(); ++row) {
      segments.push_back({.begin = row, .end = row + 1, .phase = phase, .delta = delta_of(row)});
    }
    Mat<float> y(variant.size(), base.weight.d_out);
    Linear(context, base, segments, {x.data(), variant.size(), base.weight.d_in}, y.view());
    for (size_t row = 0; row < variant.size(); ++row) {
      ExpectWithin(base.weight, delta_of(row), x.data() + row * base.weight.d_in, y.Row(row),
                   want.data() + row * base.weight.d_out, what + " row " + std::to_string(row));
    }
  });
}

}  // namespace
}  // namespace df::kernels
