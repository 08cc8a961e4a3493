#include "kernels/row_norms.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/linear_fixture.h"
#include "kernels/target.h"

namespace df::kernels {
namespace {

struct NormCase {
  size_t d_out = 0, base_rows = 0, d_in = 0;
  DeltaShape shape;
};

// Rows of the weight, entry by entry: what linear.h's formula makes of the rows of the identity.
std::vector<ExactValue> ExactNorms(const TensorView& base, const LinearDelta& delta) {
  Mat<float> identity(delta.d_in, delta.d_in);
  for (size_t k = 0; k < delta.d_in; ++k) identity.Row(k)[k] = 1.0F;
  const std::vector<ExactValue> entries = ExactLinear(base, nullptr, &delta)(identity.view());
  std::vector<ExactValue> norms(delta.d_out);
  for (size_t i = 0; i < entries.size(); ++i) {
    norms[i % delta.d_out].value += entries[i].value * entries[i].value;
    norms[i % delta.d_out].magnitude += entries[i].magnitude * entries[i].magnitude;
  }
  for (ExactValue& norm : norms) norm = {.value = std::sqrt(norm.value), .magnitude = std::sqrt(norm.magnitude)};
  return norms;
}

void ExpectNorms(const NormCase& c, DType base_dtype) {
  TensorStore store(c.d_out * 1000 + c.d_in);
  const TensorView base = store.Random(base_dtype, {c.base_rows, c.d_in}, -0.1F, 0.1F);
  const LinearDelta delta = RandomDelta(store, c.d_out, c.d_in, c.shape);
  const std::vector<ExactValue> exact = ExactNorms(base, delta);
  const double bound = static_cast<double>(2 * c.shape.planes + MostRank(&delta) + 4) * 0x1.0p-24;
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    KernelContext context(3);
    const PackedDelta packed = PackDelta(context, delta);
    const Buffer<float> norms = RowNorms(context, PackWeight(context, base), packed);
    ASSERT_EQ(norms.size(), c.d_out);
    const Buffer<float> of_mapped = RowNorms(context, MapWeight(base), packed);
    ASSERT_TRUE(std::ranges::equal(of_mapped.span(), norms.span())) << target;
    for (size_t r = 0; r < c.d_out; ++r) {
      ASSERT_NEAR(double{norms[r]}, exact[r].value, bound * exact[r].magnitude)
          << target << " " << DTypeName(base_dtype) << " [" << c.d_out << ", " << c.d_in << "] row " << r;
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

TEST(RowNorms, AreThoseOfTheFormulaForEveryPartAndSize) {
  const DeltaShape everything = {.planes = 2, .row_scale = true, .col_scale = true, .ranks = {3, 8}};
  for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
    for (const size_t d_in : {1U, 7U, 64U, 191U, 193U, 515U}) {
      ExpectNorms({33, 33, d_in, everything}, dtype);
      ExpectNorms({64, 64, d_in, {.ranks = {4}, .dtype = DType::kF32}}, dtype);
    }
    ExpectNorms({40, 40, 100, {}}, dtype);
    ExpectNorms({70, 70, 300, {.planes = 1, .ranks = {3}, .byte_rows = {0, 5, 31, 32, 69}}}, dtype);
    ExpectNorms({70, 70, 100, {.rows = {5, 40}, .byte_rows = {0, 5, 69}}}, dtype);
    ExpectNorms({70, 70, 100, {.planes = 1, .ranks = {5}, .raw = true, .dtype = DType::kF16}}, dtype);
    ExpectNorms({70, 35, 100, {.ranks = {2}, .rows = {0, 31, 32, 69}}}, dtype);  // rows beyond the base are zero
  }
}

TEST(RowNorms, OfARowOfZerosIsZero) {
  TensorStore store(1);
  const TensorView base = store.Random(DType::kBf16, {40, 50}, 0.0F, 0.0F);
  LinearDelta delta = RandomDelta(store, 40, 50, {.ranks = {3}});
  delta.low_rank[0].scale = 0;
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    KernelContext context(2);
    const Buffer<float> norms = RowNorms(context, PackWeight(context, base), PackDelta(context, delta));
    for (const float norm : norms.span()) ASSERT_EQ(norm, 0.0F) << target;
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

}  // namespace
}  // namespace df::kernels
