#include "kernels/prefill_dtype.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cpu/dot_bf16.h"
#include "kernels/linear_family.h"
#include "kernels/target.h"

namespace df::kernels {
namespace {

constexpr KernelOptions kBf16 = {.prefill_dtype = PrefillDtype::kBf16, .batch_invariant = true};

TEST(PrefillDtype, IsRefusedWithTheReasonWhereItCannotBeComputed) {
  OnEveryTarget([](const std::string& target) {
    EXPECT_TRUE(CheckPrefillDtype(PrefillDtype::kF32).ok()) << target;
    const Status status = CheckPrefillDtype(PrefillDtype::kBf16);
    const bool can = target == "scalar" || (target == "avx512" && cpu::HasDotBf16());
    EXPECT_EQ(status.ok(), can) << target;
    if (can) return;
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
    for (const std::string& word : {std::string("AVX512_BF16"), target, std::string("float32")}) {
      EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
    }
  });
}

Mat<float> Prompt(Family& family, const PackedDelta* delta, MatView<const float> x, size_t n_threads = 2) {
  Mat<float> y(x.rows, family.MaxOut());
  const LinearSegment segment = {.begin = 0, .end = x.rows, .phase = Phase::kPrefill, .delta = delta};
  Linear(n_threads == 1 ? family.context : family.threads, family.base, {&segment, 1}, x, y.view());
  return y;
}

// The oracle rounds as the kernel does, so both round the same operands: what is left is the error of f32 sums.
void ExpectNearTheOracle(Family& family, int variant, size_t n_rows, const std::string& what) {
  TensorStore store(99);
  const Mat<float> x = RandomRows(store, n_rows, family.base.weight.d_in);
  const std::vector<ExactValue> exact = family.Exact(variant)(x.view());
  const size_t d_out = exact.size() / n_rows;
  ASSERT_TRUE(SetTarget("scalar").ok());
  const Mat<float> oracle = Prompt(family, family.Packed(variant), x.view());
  ASSERT_TRUE(SetTarget("auto").ok());
  const Mat<float> y = Prompt(family, family.Packed(variant), x.view(), 1 + n_rows % 2);
  const LinearDelta* delta = variant < 0 ? nullptr : family.stored[static_cast<size_t>(variant)].get();
  // Rounded operands may be larger than exact ones; the oracle's own result is rounded to f32.
  const double bound = (LinearBound(x.cols(), MostRank(delta)) + 0x1.0p-24) * (1 + kBf16Bound);
  for (size_t row = 0; row < n_rows; ++row) {
    for (size_t out = 0; out < d_out; ++out) {
      const ExactValue& want = exact[row * d_out + out];
      ASSERT_LE(std::abs(oracle.Row(row)[out] - want.value), (bound + kBf16Bound) * want.magnitude + 1e-30)
          << what << " oracle, variant " << variant << " row " << row << " output " << out;
      ASSERT_LE(std::abs(y.Row(row)[out] - oracle.Row(row)[out]), bound * want.magnitude + 1e-30)
          << what << " variant " << variant << " row " << row << " output " << out;
    }
  }
}

void CheckVariants(Family& family, size_t n_rows) {
  const std::string what = std::to_string(family.base.weight.d_out) + "x" + std::to_string(family.base.weight.d_in) +
                           " " + std::string(DTypeName(family.base.weight.dtype));
  for (int variant = -1; variant < static_cast<int>(family.stored.size()); ++variant) {
    ExpectNearTheOracle(family, variant, n_rows, what);
  }
}

#define DF_SKIP_WITHOUT_DOTS()                                                                                     \
  if (const Status status = CheckPrefillDtype(PrefillDtype::kBf16); !status.ok() || CurrentTarget() == "scalar") { \
    GTEST_SKIP() << status.message();                                                                              \
  }

TEST(PrefillDtype, BaseIsWithinItsBoundForEveryElementTypeAndSize) {
  DF_SKIP_WITHOUT_DOTS();
  constexpr size_t kSizes[][2] = {{1, 1},     {31, 7},   {33, 63},  {72, 64},   {257, 96},  {64, 130},
                                  {128, 640}, {33, 383}, {33, 513}, {40, 4104}, {33, 14336}};
  for (const auto& [d_out, d_in] : kSizes) {
    for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
      Family family(d_out, d_in, dtype, true, d_in, kBf16);
      CheckVariants(family, 3);
    }
  }
}

TEST(PrefillDtype, VariantsAreWithinTheirBound) {
  DF_SKIP_WITHOUT_DOTS();
  constexpr size_t kSizes[][2] = {{1, 1}, {31, 7}, {72, 63}, {257, 96}, {130, 640}, {65, 513}, {40, 4104}};
  for (const auto& [d_out, d_in] : kSizes) {
    for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
      Family family(d_out, d_in, dtype, true, d_in + 1, kBf16);
      const auto last = static_cast<int32_t>(d_out - 1);
      family.Add({.planes = 1});
      family.Add({.planes = 1, .row_scale = true, .col_scale = true});
      family.Add({.planes = 2, .row_scale = true, .col_scale = true, .ranks = {3}, .gain = true});
      family.Add({.rows = {last}, .raw = true, .dtype = dtype});
      family.Add({.planes = 1, .row_scale = true, .ranks = {1, 4}, .rows = {last}, .bias = true, .dtype = dtype});
      family.Add({.planes = 1, .byte_rows = {last}});
      family.Add(d_out + 40, {.planes = 1, .row_scale = true, .rows = {last, last + 3, last + 40}});
      family.Add(d_out + 70, {.byte_rows = {last + 2, last + 65}});
      CheckVariants(family, 5);
    }
  }
}

TEST(PrefillDtype, EveryRowCountIsWithinTheBound) {
  DF_SKIP_WITHOUT_DOTS();
  Family family(65, 513, DType::kBf16, true, 9, kBf16);
  const auto variant = static_cast<int>(family.Add({.planes = 1, .row_scale = true, .col_scale = true}));
  for (size_t n = 1; n <= 40; ++n) {
    for (const int v : {-1, variant}) ExpectNearTheOracle(family, v, n, "rows " + std::to_string(n));
  }
}

TEST(PrefillDtype, ByCostAsWell) {
  DF_SKIP_WITHOUT_DOTS();
  Family family(97, 530, DType::kBf16, true, 10, {.prefill_dtype = PrefillDtype::kBf16, .batch_invariant = false});
  family.Add({.planes = 2, .row_scale = true, .ranks = {5}});
  for (const size_t n : {5U, 17U}) CheckVariants(family, n);
}

TEST(PrefillDtype, RoundsPromptsAndNothingElse) {
  Family family(96, 200, DType::kBf16, false, 12);
  family.Add({.planes = 1, .row_scale = true});
  TensorStore store(6);
  const Mat<float> x = RandomRows(store, 20, 200);
  const auto result = [&](PrefillDtype prefill_dtype, Phase phase, const PackedDelta* delta, bool batch_invariant) {
    family.context.options.prefill_dtype = prefill_dtype;
    family.context.options.batch_invariant = batch_invariant;
    std::vector<float> y(20 * 96);
    const LinearSegment segment = {.begin = 0, .end = 20, .phase = phase, .delta = delta};
    Linear(family.context, family.base, {&segment, 1}, x.view(), MatView<float>(y.data(), 20, 96));
    return y;
  };
  OnEveryTarget([&](const std::string& target) {
    if (!CheckPrefillDtype(PrefillDtype::kBf16).ok()) return;
    for (const bool batch_invariant : {false, true}) {  // 20 rows of one variant are folded in decode, by cost
      for (const int variant : {-1, 0}) {
        const PackedDelta* delta = family.Packed(variant);
        EXPECT_EQ(result(PrefillDtype::kBf16, Phase::kDecode, delta, batch_invariant),
                  result(PrefillDtype::kF32, Phase::kDecode, delta, batch_invariant))
            << target << " " << variant;
        EXPECT_NE(result(PrefillDtype::kBf16, Phase::kPrefill, delta, batch_invariant),
                  result(PrefillDtype::kF32, Phase::kPrefill, delta, batch_invariant))
            << target << " " << variant;
      }
    }
  });
}

TEST(PrefillDtype, RowsThatAreNotFiniteStayAlone) {
  DF_SKIP_WITHOUT_DOTS();
  Family family(40, 200, DType::kBf16, false, 13, kBf16);
  TensorStore store(7);
  Mat<float> x = RandomRows(store, 9, 200);
  const Mat<float> before = Prompt(family, nullptr, x.view());
  x.Row(3)[17] = std::numeric_limits<float>::quiet_NaN();
  x.Row(8)[199] = std::bit_cast<float>(0x7FFFFFFFu);  // whose upper half alone would round to another number
  x.Row(5)[0] = std::numeric_limits<float>::infinity();
  const Mat<float> y = Prompt(family, nullptr, x.view());
  for (size_t row = 0; row < 9; ++row) {
    for (size_t out = 0; out < 40; ++out) {
      if (row == 3 || row == 8) {
        EXPECT_TRUE(std::isnan(y.Row(row)[out])) << row;
      } else if (row == 5) {
        EXPECT_FALSE(std::isfinite(y.Row(row)[out]));
      } else {
        EXPECT_EQ(y.Row(row)[out], before.Row(row)[out]) << row;
      }
    }
  }
}

TEST(PrefillDtype, AsksForNoMoreMemoryAfterTheFirstCall) {
  DF_SKIP_WITHOUT_DOTS();
  Family family(96, 800, DType::kBf16, true, 14, kBf16);
  family.Add({.planes = 2, .col_scale = true, .ranks = {4}});
  TensorStore store(8);
  const Mat<float> x = RandomRows(store, 30, 800);
  Prompt(family, family.Packed(0), x.view());
  const size_t bytes = family.threads.scratch.bytes();
  Prompt(family, family.Packed(0), x.view());
  EXPECT_EQ(family.threads.scratch.bytes(), bytes);
}

}  // namespace
}  // namespace df::kernels
