// Any bytes as a layer: sizes, element types, variants, rows, options and two vector targets drawn from them. On these
// the linear kernel must stay within the bounds of linear.h around the formula in f64, and a weight that stays as
// stored must give the bits of the packed one. Most layers are tiny, so that a second holds hundreds.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "kernels/linear_fixture.h"
#include "kernels/linear_path.h"
#include "kernels/target.h"

namespace {

using df::kernels::DeltaShape;

constexpr size_t kMaxOut = 100;

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
  if (!shape.raw && numbers.Flag()) shape.rows.swap(shape.byte_rows);
  return shape;
}

struct Layer {
  explicit Layer(uint64_t seed) : store(seed) {}

  df::kernels::TensorStore store;
  df::TensorView weight;
  df::kernels::LinearWeight packed, mapped;
  df::LinearDelta delta;
  df::kernels::PackedDelta packed_delta;
};

void Build(Numbers& numbers, df::KernelContext& context, Layer& layer) {
  const bool tiny = numbers.Below(16) != 0;
  const size_t max_out = tiny ? 40 : kMaxOut;
  const size_t d_out = 1 + numbers.Below(max_out);
  // Some fill all blocks of columns.
  const size_t d_in = numbers.Flag() ? 128 * (1 + numbers.Below(tiny ? 1 : 5)) : 1 + numbers.Below(tiny ? 150 : 700);
  layer.weight = layer.store.Random(Type(numbers), {d_out, d_in}, -0.1F, 0.1F);
  layer.packed.weight = df::kernels::PackWeight(context, layer.weight);
  layer.mapped.weight = df::kernels::MapWeight(layer.weight);
  const size_t delta_out = numbers.Flag() ? d_out : 1 + numbers.Below(max_out);
  layer.delta = RandomDelta(layer.store, delta_out, d_in, ShapeOf(numbers, delta_out));
  layer.packed_delta = df::kernels::PackDelta(context, layer.delta);
}

// What a segment's outputs must be, and how far they may be off; computed once for all targets.
struct Expected {
  size_t first_row = 0, d_out = 0;
  std::vector<double> value, bound;
};

Expected ExpectedOf(const Layer& layer, const df::kernels::LinearSegment& segment, df::MatView<const float> all_x,
                    bool is_rounded) {
  const df::LinearDelta* delta = segment.delta != nullptr ? &layer.delta : nullptr;
  const df::MatView<const float> x = all_x.Rows(segment.begin, segment.end);
  const df::kernels::ExactLinear exact(layer.weight, nullptr, delta);
  const double share =
      df::kernels::LinearBound(x.cols, df::kernels::MostRank(delta)) + (is_rounded ? df::kernels::kBf16Bound : 0);
  Expected expected = {.first_row = segment.begin, .d_out = exact.d_out(), .value = {}, .bound = {}};
  for (const df::kernels::ExactValue& want : exact(x)) {
    const size_t row = expected.value.size() / expected.d_out, out = expected.value.size() % expected.d_out;
    const double lookup = delta != nullptr ? df::kernels::LookupBound(*delta, out, x.Row(row)) : 0;
    expected.value.push_back(want.value);
    expected.bound.push_back(share * want.magnitude + lookup + 1e-30);
  }
  return expected;
}

void Check(const Expected& expected, df::MatView<const float> y) {
  for (size_t i = 0; i < expected.value.size(); ++i) {
    const float got = y.Row(expected.first_row + i / expected.d_out)[i % expected.d_out];
    DF_CHECK(std::abs(got - expected.value[i]) <= expected.bound[i]);
  }
}

// Made once: starting a thread takes longer than a tiny layer.
df::KernelContext& ContextOf(size_t n_threads) {
  static df::KernelContext one(1), two(2);
  return n_threads == 1 ? one : two;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Numbers numbers(data, size);
  df::KernelContext& context = ContextOf(1 + numbers.Below(2));
  constexpr df::SignKernel kKernels[] = {df::SignKernel::kAuto, df::SignKernel::kExact, df::SignKernel::kLookup};
  context.options = {.sign_kernel = kKernels[numbers.Below(3)], .batch_invariant = numbers.Flag()};
  if (numbers.Flag()) context.options.prefill_dtype = df::PrefillDtype::kBf16;
  const df::KernelOptions asked = context.options;
  Layer layer(numbers.Below(65536));
  Build(numbers, context, layer);
  std::vector<df::kernels::LinearSegment> segments;
  size_t n = 0;
  for (size_t i = 1 + numbers.Below(4); i > 0; --i) {
    const size_t rows = numbers.Below(numbers.Flag() ? 4 : 20);
    segments.push_back({.begin = n,
                        .end = n + rows,
                        .phase = numbers.Flag() ? df::kernels::Phase::kDecode : df::kernels::Phase::kPrefill,
                        .delta = numbers.Flag() ? &layer.packed_delta : nullptr});
    n += rows;
  }
  if (n == 0) return 0;
  df::Mat<float> x = RandomRows(layer.store, n, layer.weight.shape[1]);
  if (numbers.Flag()) x.Row(numbers.Below(n))[numbers.Below(x.cols())] *= 5000;
  std::vector<Expected> expected;
  for (const df::kernels::LinearSegment& segment : segments) {
    if (segment.begin < segment.end) {
      expected.push_back(ExpectedOf(layer, segment, x.view(), df::kernels::RoundsToBf16(asked, segment)));
    }
  }
  static const std::vector<std::string> targets = df::kernels::AvailableTargets();
  for (const size_t target : {numbers.Below(targets.size()), numbers.Below(targets.size())}) {
    DF_CHECK(df::kernels::SetTarget(targets[target]).ok());
    context.options.prefill_dtype = std::min(asked.prefill_dtype, df::kernels::PossiblePrefillDtypes().back());
    df::Mat<float> y(n, kMaxOut), from_mapped(n, kMaxOut);
    Linear(context, layer.packed, segments, x.view(), y.view());
    for (const Expected& segment : expected) Check(segment, y.view());
    Linear(context, layer.mapped, segments, x.view(), from_mapped.view());
    DF_CHECK(std::memcmp(y.Row(0), from_mapped.Row(0), y.size_bytes()) == 0);
  }
  return 0;
}
