// Any bytes as a layer: sizes, element types, variants, rows and options drawn from them. On every vector target the
// linear kernel must stay within the bounds of linear.h around the formula in f64.
#include <cmath>
#include <string>

#include "base/check.h"
#include "kernels/linear_fixture.h"
#include "kernels/target.h"

namespace {

using df::kernels::DeltaShape;

// Reads numbers off the input; 0 once it is empty.
class Numbers {
 public:
  Numbers(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  size_t Below(size_t n) {
    const size_t low = Byte();
    return (low | Byte() << 8) % n;
  }
  bool Flag() { return (Byte() & 1) != 0; }

 private:
  size_t Byte() {
    if (left_ == 0) return 0;
    --left_;
    return *data_++;
  }

  const uint8_t* data_;
  size_t left_;
};

df::DType Type(Numbers& numbers) {
  constexpr df::DType kTypes[] = {df::DType::kBf16, df::DType::kF16, df::DType::kF32};
  return kTypes[numbers.Below(3)];
}

DeltaShape ShapeOf(Numbers& numbers, size_t d_out) {
  DeltaShape shape = {.planes = numbers.Below(3),
                      .row_scale = numbers.Flag(),
                      .col_scale = numbers.Flag(),
                      .raw = numbers.Below(4) == 0,
                      .gain = numbers.Flag(),
                      .bias = numbers.Flag(),
                      .dtype = Type(numbers)};
  for (size_t i = numbers.Below(3); i > 0; --i) shape.ranks.push_back(1 + numbers.Below(20));
  for (size_t row = numbers.Below(16); row < d_out && shape.rows.size() < 8; row += 1 + numbers.Below(40)) {
    if (numbers.Flag()) shape.rows.push_back(static_cast<int32_t>(row));
  }
  return shape;
}

struct Layer {
  explicit Layer(uint64_t seed) : store(seed) {}

  df::kernels::TensorStore store;
  df::TensorView weight;
  df::kernels::LinearWeight packed;
  df::LinearDelta delta;
  df::kernels::PackedDelta packed_delta;
};

void Build(Numbers& numbers, df::KernelContext& context, Layer& layer) {
  const size_t d_out = 1 + numbers.Below(100);
  const size_t d_in = numbers.Flag() ? 128 * (1 + numbers.Below(5)) : 1 + numbers.Below(700);  // some fill all blocks
  layer.weight = layer.store.Random(Type(numbers), {d_out, d_in}, -0.1F, 0.1F);
  layer.packed.weight = df::kernels::PackWeight(context, layer.weight);
  const size_t delta_out = numbers.Flag() ? d_out : 1 + numbers.Below(100);
  layer.delta = RandomDelta(layer.store, delta_out, d_in, ShapeOf(numbers, delta_out));
  layer.packed_delta = df::kernels::PackDelta(context, layer.delta);
}

void Check(const Layer& layer, const df::kernels::LinearSegment& segment, df::MatView<const float> all_x,
           df::MatView<const float> y) {
  if (segment.begin == segment.end) return;
  const df::LinearDelta* delta = segment.delta != nullptr ? &layer.delta : nullptr;
  const df::MatView<const float> x = all_x.Rows(segment.begin, segment.end);
  const df::kernels::ExactLinear exact(layer.weight, nullptr, delta);
  const auto want = exact(x);
  const double bound = df::kernels::LinearBound(x.cols, df::kernels::MostRank(delta));
  for (size_t i = 0; i < want.size(); ++i) {
    const size_t row = i / exact.d_out(), out = i % exact.d_out();
    const double lookup = delta != nullptr ? df::kernels::LookupBound(*delta, out, x.Row(row)) : 0;
    DF_CHECK(std::abs(y.Row(segment.begin + row)[out] - want[i].value) <= bound * want[i].magnitude + lookup + 1e-30);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Numbers numbers(data, size);
  df::KernelContext context(1 + numbers.Below(2));
  constexpr df::SignKernel kKernels[] = {df::SignKernel::kAuto, df::SignKernel::kExact, df::SignKernel::kLookup};
  context.options = {.sign_kernel = kKernels[numbers.Below(3)], .batch_invariant = numbers.Flag()};
  Layer layer(numbers.Below(65536));
  Build(numbers, context, layer);
  std::vector<df::kernels::LinearSegment> segments;
  size_t n = 0;
  for (size_t i = 1 + numbers.Below(4); i > 0; --i) {
    const size_t rows = numbers.Below(10);
    segments.push_back({.begin = n,
                        .end = n + rows,
                        .phase = numbers.Flag() ? df::kernels::Phase::kDecode : df::kernels::Phase::kPrefill,
                        .delta = numbers.Flag() ? &layer.packed_delta : nullptr});
    n += rows;
  }
  if (n == 0) return 0;
  df::Mat<float> x = RandomRows(layer.store, n, layer.weight.shape[1]);
  if (numbers.Flag()) x.Row(numbers.Below(n))[numbers.Below(x.cols())] *= 5000;
  for (const std::string& target : df::kernels::AvailableTargets()) {
    DF_CHECK(df::kernels::SetTarget(target).ok());
    df::Mat<float> y(n, 100);
    Linear(context, layer.packed, segments, x.view(), y.view());
    for (const df::kernels::LinearSegment& segment : segments) Check(layer, segment, x.view(), y.view());
  }
  return 0;
}
