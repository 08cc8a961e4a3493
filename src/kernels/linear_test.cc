#include "kernels/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/core.h"
#include "kernels/linear_family.h"
#include "kernels/prefill_dtype.h"

namespace df::kernels {
namespace {

void ExpectNear(const Family& family, int variant, MatView<const float> x, MatView<const float> y,
                const std::vector<ExactValue>& exact, const std::string& what, bool by_lookup = false) {
  const LinearDelta* delta = variant < 0 ? nullptr : family.stored[static_cast<size_t>(variant)].get();
  const double bound = LinearBound(x.cols, MostRank(delta));
  const size_t d_out = exact.size() / x.rows;
  for (size_t row = 0; row < x.rows; ++row) {
    for (size_t out = 0; out < d_out; ++out) {
      const ExactValue& want = exact[row * d_out + out];
      const double lookup = by_lookup && delta != nullptr ? LookupBound(*delta, out, x.Row(row)) : 0;
      ASSERT_LE(std::abs(y.Row(row)[out] - want.value), bound * want.magnitude + lookup + 1e-30)
          << what << " variant " << variant << " row " << row << " output " << out << " want " << want.value;
    }
  }
}

std::string Describe(const Family& family, const std::string& target, Phase phase) {
  return target + (phase == Phase::kDecode ? " decode " : " prefill ") + std::to_string(family.base.weight.d_out) +
         "x" + std::to_string(family.base.weight.d_in) + " " + std::string(DTypeName(family.base.weight.dtype));
}

// Every variant alone and in both phases against the formula.
void CheckFamily(Family& family, size_t n_rows) {
  TensorStore store(99);
  const Mat<float> x = RandomRows(store, n_rows, family.base.weight.d_in);
  for (int variant = -1; variant < static_cast<int>(family.stored.size()); ++variant) {
    const std::vector<ExactValue> exact = family.Exact(variant)(x.view());
    OnEveryTarget([&](const std::string& target) {
      for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
        Mat<float> y(n_rows, family.MaxOut());
        const LinearSegment segment = {.begin = 0, .end = n_rows, .phase = phase, .delta = family.Packed(variant)};
        Linear(phase == Phase::kDecode ? family.context : family.threads, family.base, {&segment, 1}, x.view(),
               y.view());
        ExpectNear(family, variant, x.view(), y.view(), exact, Describe(family, target, phase));
      }
    });
  }
}

struct Size {
  size_t d_out;
  size_t d_in;
};

TEST(Linear, BaseIsWithinItsBoundForEveryElementTypeAndSize) {
  const std::vector<Size> sizes = {{1, 1},    {31, 7},    {33, 63},  {72, 64},   {257, 96},
                                   {64, 130}, {128, 640}, {33, 513}, {40, 4104}, {33, 14336}};
  for (const Size size : sizes) {
    for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
      Family family(size.d_out, size.d_in, dtype, true, size.d_in);
      CheckFamily(family, 3);
    }
  }
}

TEST(Linear, SignPlanesAreWithinTheirBoundForEveryScale) {
  const std::vector<Size> sizes = {{1, 1},     {31, 7},   {72, 63},   {257, 96},  {33, 130},
                                   {130, 640}, {65, 513}, {40, 4104}, {33, 14336}};
  for (const Size size : sizes) {
    Family family(size.d_out, size.d_in, DType::kBf16, false, size.d_in + 1);
    family.Add({.planes = 1, .row_scale = false, .col_scale = false});
    family.Add({.planes = 1, .row_scale = true, .col_scale = false});
    family.Add({.planes = 1, .row_scale = true, .col_scale = true});
    family.Add({.planes = 2, .row_scale = true, .col_scale = false, .bias = true});
    family.Add({.planes = 2, .row_scale = true, .col_scale = true, .gain = true});
    CheckFamily(family, 2);
  }
}

TEST(Linear, SignPlanesLieOnAnyElementType) {
  for (const DType dtype : {DType::kF16, DType::kF32}) {
    Family family(72, 130, dtype, true, 5);
    family.Add({.planes = 2, .row_scale = true, .col_scale = true});
    family.Add({.planes = 1, .raw = true, .dtype = dtype});
    CheckFamily(family, 17);
  }
}

TEST(Linear, LowRankPairsAreWithinTheirBound) {
  for (const size_t rank : std::vector<size_t>{1, 2, 7, 16, 64}) {
    Family family(72, 130, DType::kBf16, true, rank);
    for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) family.Add({.ranks = {rank}, .dtype = dtype});
    family.Add({.planes = 1, .row_scale = true, .ranks = {rank, 3}, .gain = true, .bias = true});
    CheckFamily(family, 5);
  }
  Family tall(33, 14336, DType::kBf16, false, 8);
  tall.Add({.ranks = {16}});
  CheckFamily(tall, 2);
}

TEST(Linear, ReplacedRowsStandForWeightAndPlanesAndCarryTheRest) {
  Family family(72, 100, DType::kBf16, true, 6);
  const std::vector<int32_t> rows = {0, 5, 6, 7, 31, 32, 63, 64, 71};
  family.Add({.rows = rows});
  family.Add({.planes = 1, .row_scale = true, .ranks = {4}, .rows = rows, .gain = true, .dtype = DType::kF16});
  family.Add({.rows = {71}, .raw = true, .dtype = DType::kF32});
  family.Add({.byte_rows = rows});
  family.Add({.planes = 1, .col_scale = true, .ranks = {4}, .byte_rows = rows, .gain = true, .bias = true});
  family.Add({.byte_rows = {0, 71}, .raw = true});
  family.Add({.rows = {0, 71}, .byte_rows = {0, 1, 70, 71}});  // a replaced row stands for its bytes too
  CheckFamily(family, 9);
}

TEST(Linear, VocabularyMayGrowOrShrink) {
  Family family(65, 40, DType::kBf16, true, 7);
  family.Add(100, {.rows = {65, 66, 80, 99}});
  family.Add(161, {.planes = 1, .row_scale = true, .ranks = {2}, .rows = {3, 160}});
  family.Add(100, {.byte_rows = {65, 66, 80, 99}});
  family.Add(20, {.planes = 1, .col_scale = true});
  family.Add(33, {.bias = true});
  family.Add(130, {.raw = true});
  CheckFamily(family, 4);
}

TEST(Linear, EveryRowCountIsWithinTheBound) {
  Family family(65, 513, DType::kBf16, true, 9);
  const auto variant = static_cast<int>(family.Add({.planes = 1, .row_scale = true, .col_scale = true}));
  TensorStore store(3);
  const Mat<float> x = RandomRows(store, 40, 513);
  const std::vector<ExactValue> base = family.Exact(-1)(x.view());
  const std::vector<ExactValue> signs = family.Exact(variant)(x.view());
  OnEveryTarget([&](const std::string& target) {
    if (target == "scalar") return;
    for (size_t n = 1; n <= 40; ++n) {
      for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
        for (const int v : {-1, variant}) {
          Mat<float> y(n, 65);
          const LinearSegment segment = {.begin = 0, .end = n, .phase = phase, .delta = family.Packed(v)};
          const MatView<const float> rows(x.Row(0), n, 513);
          Linear(family.context, family.base, {&segment, 1}, rows, y.view());
          const std::vector<ExactValue>& exact = v < 0 ? base : signs;
          const std::vector<ExactValue> first(exact.data(), exact.data() + 65 * n);
          ExpectNear(family, v, rows, y.view(), first, target + " rows " + std::to_string(n));
        }
      }
    }
  });
}

TEST(Linear, ErrorOfLongSumsIsBelowOneMillionth) {
  for (const Size size : {Size{64, 4104}, Size{64, 14336}}) {
    Family family(size.d_out, size.d_in, DType::kBf16, false, 10);
    const auto variant = static_cast<int>(family.Add({.planes = 1, .row_scale = true}));
    TensorStore store(4);
    const Mat<float> x = RandomRows(store, 4, size.d_in);
    const std::vector<ExactValue> exact = family.Exact(variant)(x.view());
    OnEveryTarget([&](const std::string& target) {
      for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
        Mat<float> y(4, size.d_out);
        const LinearSegment segment = {.begin = 0, .end = 4, .phase = phase, .delta = family.Packed(variant)};
        Linear(family.threads, family.base, {&segment, 1}, x.view(), y.view());
        double error = 0, norm = 0;
        for (size_t i = 0; i < exact.size(); ++i) {
          error += std::pow(y.Row(0)[i] - exact[i].value, 2);
          norm += std::pow(exact[i].value, 2);
        }
        EXPECT_LE(std::sqrt(error / norm), 1e-6) << Describe(family, target, phase);
      }
    });
  }
}

TEST(Linear, TouchesOnlyItsRowsAndColumnsWhateverTheStrides) {
  Family family(40, 30, DType::kBf16, false, 11);
  const auto small = static_cast<int>(family.Add(20, {.planes = 1}));
  TensorStore store(5);
  const Mat<float> x = RandomRows(store, 8, 37);  // stride 37, 30 used
  const MatView<const float> view(x.Row(0), 8, 30, 37);
  OnEveryTarget([&](const std::string& target) {
    Mat<float> y(8, 51);
    std::fill_n(y.Row(0), 8 * 51, 7.0F);
    const std::vector<LinearSegment> segments = {
        {.begin = 1, .end = 3, .phase = Phase::kDecode, .delta = nullptr},
        {.begin = 3, .end = 3, .phase = Phase::kPrefill, .delta = family.Packed(small)},
        {.begin = 5, .end = 7, .phase = Phase::kPrefill, .delta = family.Packed(small)}};
    Linear(family.threads, family.base, segments, view, {y.Row(0), 8, 45, 51});
    for (size_t row = 0; row < 8; ++row) {
      const size_t written = row == 1 || row == 2 ? 40 : row == 5 || row == 6 ? 20 : 0;
      for (size_t col = 0; col < 51; ++col) EXPECT_EQ(y.Row(row)[col] == 7.0F, col >= written) << target << row;
    }
    ExpectNear(family, small, view.Rows(5, 7), y.Rows(5, 7), family.Exact(small)(view.Rows(5, 7)), target);
  });
}

TEST(Linear, AsksForNoMoreMemoryAfterTheFirstCall) {
  Family family(96, 200, DType::kBf16, true, 12);
  const auto variant = static_cast<int>(family.Add({.planes = 2, .col_scale = true, .ranks = {4}}));
  TensorStore store(6);
  const Mat<float> x = RandomRows(store, 30, 200);
  Mat<float> y(30, 96);
  KernelContext context(2);
  const std::vector<LinearSegment> segments = {
      {.begin = 0, .end = 10, .phase = Phase::kPrefill, .delta = family.Packed(variant)},
      {.begin = 10, .end = 30, .phase = Phase::kDecode, .delta = family.Packed(variant)}};
  Linear(context, family.base, segments, x.view(), y.view());
  const size_t bytes = context.scratch.bytes();
  Linear(context, family.base, segments, x.view(), y.view());
  EXPECT_EQ(context.scratch.bytes(), bytes);
}

// --- 14-bit tables

TEST(Linear, LookupSignsAreWithinTheirBound) {
  const KernelOptions lookup = {.sign_kernel = SignKernel::kLookup, .batch_invariant = true};
  for (const Size size :
       {Size{1, 1}, Size{31, 7}, Size{72, 63}, Size{257, 96}, Size{130, 640}, Size{65, 513}, Size{40, 4104}}) {
    Family family(size.d_out, size.d_in, DType::kBf16, true, size.d_in + 2, lookup);
    family.Add({.planes = 1, .row_scale = true});
    family.Add({.planes = 1, .row_scale = true, .col_scale = true});
    family.Add({.planes = 2, .row_scale = true, .ranks = {3}, .gain = true});
    family.Add({.planes = 2, .col_scale = true, .raw = true});
    TensorStore store(16);
    Mat<float> x = RandomRows(store, 5, size.d_in);
    x.Row(1)[size.d_in / 2] = 1000;
    std::fill_n(x.Row(2), size.d_in, 0.0F);
    x.Row(3)[0] = -3e6F;
    for (int variant = 0; variant < 4; ++variant) {
      const std::vector<ExactValue> exact = family.Exact(variant)(x.view());
      OnEveryTarget([&](const std::string& target) {
        Mat<float> y(5, size.d_out);
        const LinearSegment segment = {.begin = 0, .end = 5, .delta = family.Packed(variant)};
        Linear(family.threads, family.base, {&segment, 1}, x.view(), y.view());
        ExpectNear(family, variant, x.view(), y.view(), exact, Describe(family, target, Phase::kDecode), true);
      });
    }
  }
}

// Error of the variant's part alone, relative to that part without the outlier's contribution.
double LookupError(Family& family, const Mat<float>& x, size_t outlier) {
  Mat<float> y(x.rows(), family.MaxOut());
  const LinearSegment segment = {.begin = 0, .end = x.rows(), .delta = family.Packed(0)};
  Linear(family.context, family.base, {&segment, 1}, x.view(), y.view());
  const std::vector<ExactValue> exact = family.Exact(0)(x.view());
  Mat<float> rest(x.rows(), x.cols());
  for (size_t row = 0; row < x.rows(); ++row) {
    std::copy_n(x.Row(row), x.cols(), rest.Row(row));
    if (outlier < x.cols()) rest.Row(row)[outlier] = 0;
  }
  const std::vector<ExactValue> part = family.Exact(0)(rest.view());
  double error = 0, norm = 0;
  for (size_t row = 0; row < x.rows(); ++row) {
    for (size_t out = 0; out < family.MaxOut(); ++out) {
      error += std::pow(y.Row(row)[out] - exact[row * family.MaxOut() + out].value, 2);
      norm += std::pow(part[row * family.MaxOut() + out].value, 2);
    }
  }
  return std::sqrt(error / norm);
}

TEST(Linear, LookupErrorIsOneThousandthOfTheVariantsPartAndOneHundredthBesideAnOutlier) {
  const KernelOptions lookup = {.sign_kernel = SignKernel::kLookup, .batch_invariant = true};
  Family family(64, 4096, DType::kBf16, false, 17, lookup);
  std::fill_n(family.base.weight.tiles.data(), family.base.weight.tiles.size(), uint8_t{0});
  std::fill_n(const_cast<uint8_t*>(family.weight.bytes.data()), family.weight.bytes.size(), uint8_t{0});
  family.Add({.planes = 1, .row_scale = true});
  TensorStore store(18);
  Mat<float> x = RandomRows(store, 3, 4096);
  for (size_t i = 0; i < 3 * 4096; ++i) {  // about normal
    for (int more = 0; more < 7; ++more) x.Row(0)[i] += store.Uniform(-1.0F, 1.0F);
  }
  OnEveryTarget([&](const std::string& target) { EXPECT_LE(LookupError(family, x, SIZE_MAX), 1e-3) << target; });
  for (size_t row = 0; row < 3; ++row) x.Row(row)[777] = 1630;  // 1000 times the rms
  OnEveryTarget([&](const std::string& target) { EXPECT_LE(LookupError(family, x, 777), 1e-2) << target; });
}

TEST(Linear, StaysWithinTheBoundsWhateverPathItChooses) {
  Family family(97, 530, DType::kBf16, true, 19, {.batch_invariant = false});
  family.Add({.planes = 1, .row_scale = true});
  family.Add({.planes = 2, .row_scale = true, .col_scale = true, .ranks = {5}, .gain = true});
  family.Add(120, {.ranks = {2}, .rows = {1, 96, 97, 98, 119}});
  family.Add(120, {.planes = 1, .byte_rows = {1, 96, 97, 98, 99, 119}});
  family.Add({.planes = 1, .raw = true});
  TensorStore store(20);
  OnEveryTarget([&](const std::string& target) {
    for (int round = 0; round < (target == "scalar" ? 1 : 5); ++round) {
      std::vector<LinearSegment> segments;
      std::vector<int> variants;
      size_t n = 0;
      for (int variant = -1; variant < 4; ++variant) {
        for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
          const size_t rows = store.Draw() % 9;
          segments.push_back({.begin = n, .end = n + rows, .phase = phase, .delta = family.Packed(variant)});
          variants.push_back(variant);
          n += rows;
        }
      }
      const Mat<float> x = RandomRows(store, n, 530);
      Mat<float> y(n, family.MaxOut());
      Linear(round % 2 == 0 ? family.context : family.threads, family.base, segments, x.view(), y.view());
      for (size_t i = 0; i < segments.size(); ++i) {
        const size_t begin = segments[i].begin, end = segments[i].end;
        if (begin == end) continue;
        const MatView<const float> rows(x.Row(begin), end - begin, 530);
        ExpectNear(family, variants[i], rows, y.Rows(begin, end), family.Exact(variants[i])(rows),
                   target + " segment " + std::to_string(i), true);
      }
    }
  });
}

// --- batch invariance: bits, not bounds

struct Placed {
  size_t source;  // row of the pool of inputs
  int variant;
  Phase phase;
};

std::vector<float> Alone(Family& family, const Mat<float>& inputs, const Placed& placed) {
  Mat<float> y(1, family.MaxOut());
  const LinearSegment segment = {.begin = 0, .end = 1, .phase = placed.phase, .delta = family.Packed(placed.variant)};
  const MatView<const float> x(inputs.Row(placed.source), 1, inputs.cols());
  Linear(family.context, family.base, {&segment, 1}, x, y.view());
  return {y.Row(0), y.Row(0) + family.Exact(placed.variant).d_out()};
}

// A random batch of segments drawn from the pool.
std::vector<Placed> RandomBatch(TensorStore& store, const Family& family, size_t n_inputs) {
  std::vector<Placed> batch;
  const size_t n_segments = 1 + store.Draw() % 6;
  for (size_t s = 0; s < n_segments; ++s) {
    const int variant = static_cast<int>(store.Draw() % (family.stored.size() + 1)) - 1;
    const Phase phase = store.Draw() % 2 == 0 ? Phase::kDecode : Phase::kPrefill;
    const size_t n = 1 + store.Draw() % (store.Draw() % 4 == 0 ? 40 : 5);
    for (size_t i = 0; i < n; ++i) batch.push_back({store.Draw() % n_inputs, variant, phase});
  }
  return batch;
}

std::vector<LinearSegment> SegmentsOf(const Family& family, const std::vector<Placed>& batch) {
  std::vector<LinearSegment> segments;
  for (size_t i = 0; i < batch.size(); ++i) {
    const PackedDelta* delta = family.Packed(batch[i].variant);
    if (segments.empty() || segments.back().delta != delta || segments.back().phase != batch[i].phase) {
      segments.push_back({.begin = i, .end = i, .phase = batch[i].phase, .delta = delta});
    }
    segments.back().end = i + 1;
  }
  return segments;
}

void ExpectTheSameBitsInAnyBatch(const KernelOptions& options, size_t d_in) {
  Family family(97, d_in, DType::kBf16, true, 13, options);
  family.Add({.planes = 1, .row_scale = true});
  family.Add({.planes = 1, .row_scale = true, .col_scale = true});
  family.Add({.planes = 2, .row_scale = true, .ranks = {5}, .gain = true});
  family.Add({.ranks = {16, 3}, .bias = true});
  family.Add(120, {.ranks = {2}, .rows = {1, 96, 97, 98, 119}});
  family.Add(120, {.planes = 1, .byte_rows = {1, 96, 97, 98, 99, 119}});
  family.Add({.planes = 1, .raw = true});
  constexpr size_t kInputs = 12;
  TensorStore store(7);
  const Mat<float> inputs = RandomRows(store, kInputs, d_in);
  std::list<KernelContext> contexts;
  for (size_t n_threads = 1; n_threads <= 3; ++n_threads) contexts.emplace_back(n_threads, options);
  OnEveryTarget([&](const std::string& target) {
    if (!CheckPrefillDtype(options.prefill_dtype).ok()) return;
    for (int round = 0; round < (target == "scalar" ? 2 : 24); ++round) {
      const std::vector<Placed> batch = RandomBatch(store, family, kInputs);
      Mat<float> x(batch.size(), d_in);
      for (size_t i = 0; i < batch.size(); ++i) std::copy_n(inputs.Row(batch[i].source), d_in, x.Row(i));
      KernelContext& context = *std::next(contexts.begin(), round % 3);
      Mat<float> y(batch.size(), family.MaxOut());
      Linear(context, family.base, SegmentsOf(family, batch), x.view(), y.view());
      for (size_t i = 0; i < batch.size(); ++i) {
        const std::vector<float> alone = Alone(family, inputs, batch[i]);
        ASSERT_EQ(std::memcmp(alone.data(), y.Row(i), alone.size() * sizeof(float)), 0)
            << target << " round " << round << " row " << i << " of " << batch.size() << " variant "
            << batch[i].variant;
      }
    }
  });
}

TEST(Linear, BitsOfARowDoNotDependOnItsBatchOrTheThreads) {
  for (const SignKernel kernel : {SignKernel::kAuto, SignKernel::kExact, SignKernel::kLookup}) {
    ExpectTheSameBitsInAnyBatch({.sign_kernel = kernel, .batch_invariant = true}, 530);
    ExpectTheSameBitsInAnyBatch({.sign_kernel = kernel, .batch_invariant = true}, 640);  // whole blocks of columns
  }
  for (const size_t d_in : {530U, 768U, 771U}) {
    ExpectTheSameBitsInAnyBatch({.prefill_dtype = PrefillDtype::kBf16, .batch_invariant = true}, d_in);
  }
}

// The loops of other cores than this machine's, over more columns than a turn of decode_turns-inl.h has.
TEST(Linear, EveryKindOfCoreGivesTheSameBits) {
  const cpu::CoreHabits own = cpu::ThisCore();
  for (const SignKernel kernel : {SignKernel::kExact, SignKernel::kLookup}) {
    const KernelOptions options = {.sign_kernel = kernel, .batch_invariant = true};
    Family family(161, 4098 + 512, DType::kBf16, true, 23, options);
    for (int i = 0; i < 3; ++i) family.Add({.planes = 2, .row_scale = true});
    family.Add(70, {.planes = 1, .row_scale = true, .col_scale = true});
    TensorStore store(24);
    const Mat<float> inputs = RandomRows(store, 14, family.base.weight.d_in);
    OnEveryTarget([&](const std::string& target) {
      if (target == "scalar") return;
      for (const size_t n : {1U, 2U, 3U, 8U, 14U}) {
        std::vector<Placed> batch;
        for (size_t i = 0; i < n; ++i) batch.push_back({i, static_cast<int>((i + 1) % 5) - 1, Phase::kDecode});
        std::vector<Mat<float>> results;
        for (const bool in_turns : {false, true}) {
          cpu::SetThisCore({.min_turn_rows = in_turns ? 1 : SIZE_MAX, .halves_vectors = in_turns});
          results.emplace_back(n, family.MaxOut());
          Linear(family.context, family.base, SegmentsOf(family, batch),
                 MatView<const float>(inputs.Row(0), n, inputs.cols()), results.back().view());
        }
        for (size_t i = 0; i < n; ++i) {
          const size_t bytes = family.Exact(batch[i].variant).d_out() * sizeof(float);
          ASSERT_EQ(std::memcmp(results[0].Row(i), results[1].Row(i), bytes), 0)
              << target << " row " << i << " of " << n;
        }
      }
    });
  }
  cpu::SetThisCore(own);
}

TEST(Linear, AutoTakesTablesFromTheSignProductOnThatTheContractNames) {
  const cpu::CoreHabits own = cpu::ThisCore();
  Family family(64, 640, DType::kBf16, false, 29, {.batch_invariant = false});
  family.Add({.planes = 1, .row_scale = true});
  TensorStore store(30);
  const Mat<float> x = RandomRows(store, 4, 640);
  const auto result = [&](SignKernel kernel, size_t n) {
    family.context.options.sign_kernel = kernel;
    std::vector<float> y(n * 64);
    const LinearSegment segment = {.begin = 0, .end = n, .phase = Phase::kDecode, .delta = family.Packed(0)};
    Linear(family.context, family.base, {&segment, 1}, MatView<const float>(x.Row(0), n, x.cols()),
           MatView<float>(y.data(), n, 64));
    return y;
  };
  OnEveryTarget([&](const std::string& target) {
    if (target == "scalar") return;
    for (const bool amd : {false, true}) {
      cpu::SetThisCore({.min_turn_rows = amd ? 1 : SIZE_MAX, .halves_vectors = amd});
      const size_t first = !target.starts_with("avx512") ? 2 : amd ? 1 : 4;
      for (size_t n = 1; n <= 4; ++n) {
        EXPECT_NE(result(SignKernel::kExact, n), result(SignKernel::kLookup, n)) << target << " " << n;
        EXPECT_EQ(result(SignKernel::kAuto, n), result(n < first ? SignKernel::kExact : SignKernel::kLookup, n))
            << target << " " << n << (amd ? " on AMD" : "");
      }
    }
  });
  cpu::SetThisCore(own);
}

void ExpectTheSameBitsAmongHundreds(DType dtype, PrefillDtype prefill_dtype) {
  Family family(64, 300, dtype, false, 14, {.prefill_dtype = prefill_dtype, .batch_invariant = true});
  family.Add({.planes = 1, .row_scale = true, .ranks = {4}});
  TensorStore store(8);
  const size_t n = 600;
  const Mat<float> x = RandomRows(store, n, 300);
  OnEveryTarget([&](const std::string& target) {
    if (target == "scalar" || !CheckPrefillDtype(prefill_dtype).ok()) return;
    for (const int variant : {-1, 0}) {
      Mat<float> y(n, 64);
      const LinearSegment segment = {.begin = 0, .end = n, .phase = Phase::kPrefill, .delta = family.Packed(variant)};
      Linear(family.threads, family.base, {&segment, 1}, x.view(), y.view());
      for (size_t row = 0; row < n; row += 37) {
        const std::vector<float> alone = Alone(family, x, {row, variant, Phase::kPrefill});
        ASSERT_EQ(std::memcmp(alone.data(), y.Row(row), 64 * sizeof(float)), 0) << target << " row " << row;
      }
    }
  });
}

TEST(Linear, APromptRowHasTheSameBitsAmongHundreds) {
  ExpectTheSameBitsAmongHundreds(DType::kF16, PrefillDtype::kF32);
  ExpectTheSameBitsAmongHundreds(DType::kF16, PrefillDtype::kBf16);
  ExpectTheSameBitsAmongHundreds(DType::kBf16, PrefillDtype::kBf16);
}

}  // namespace
}  // namespace df::kernels
