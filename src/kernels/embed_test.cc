#include "kernels/embed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/float16.h"
#include "base/rng.h"
#include "kernels/target.h"

namespace df::kernels {
namespace {

float RandomFloat(uint64_t seed, uint64_t k) { return static_cast<float>(RandomUnit(seed, k) * 2 - 1); }

// A stored matrix and its bytes.
struct Stored {
  std::vector<uint8_t> bytes;
  TensorView view;

  Stored(DType dtype, Shape shape, uint64_t seed) {
    const size_t n = shape.TryElements().value();
    bytes.resize(n * DTypeBytes(dtype));
    for (size_t i = 0; i < n; ++i) {
      const float value = RandomFloat(seed, i);
      const Bf16 bf16 = ToBf16(value);
      const F16 f16 = ToF16(value);
      const void* from = dtype == DType::kF32    ? static_cast<const void*>(&value)
                         : dtype == DType::kBf16 ? static_cast<const void*>(&bf16)
                                                 : static_cast<const void*>(&f16);
      std::memcpy(bytes.data() + i * DTypeBytes(dtype), from, DTypeBytes(dtype));
    }
    view = {.dtype = dtype, .shape = shape, .bytes = bytes};
  }
};

constexpr size_t kVocab = 70;

TEST(Embed, ReadsTheRowsOfEveryStoredType) {
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
      for (const size_t d : {1U, 7U, 64U, 513U}) {
        KernelContext context(2);
        const Stored stored(dtype, {kVocab, d}, d);
        const PackedWeight table = PackWeight(context, stored.view);
        const std::vector<int32_t> tokens = {0, 69, 31, 32, 5, 5};
        Mat<float> out(6, d);
        const LinearSegment segment = {.begin = 1, .end = 6};
        Embed(context, table, {&segment, 1}, tokens, out.view());
        for (size_t i = 0; i < 6 * d; ++i) {
          const size_t token = static_cast<size_t>(tokens[i / d]);
          const float expected = i < d ? 0.0F : FloatAt(stored.view, token * d + i % d);
          ASSERT_EQ(out.Row(0)[i], expected) << target << " " << DTypeName(dtype) << " d " << d;
        }
      }
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

// A delta of every kind at once on a table of 75 tokens, 5 of them new; compared with the formula of linear_delta.h.
TEST(Embed, AppliesPlanesReplacedRowsRawLowRanksAndGain) {
  const size_t d = 45, vocab = 75;
  std::vector<uint8_t> bits(vocab * SignRowBytes(d));
  for (size_t i = 0; i < bits.size(); ++i) {
    bits[i] = static_cast<uint8_t>(RandomBits(8, i));
    if (i % SignRowBytes(d) == SignRowBytes(d) - 1) bits[i] &= 0x1F;  // 45 columns: padding bits are 0
  }
  const Stored row_scale(DType::kF32, {vocab}, 9), col_scale(DType::kBf16, {d}, 10), gain(DType::kF32, {vocab}, 11);
  const Stored rows(DType::kF16, {7, d}, 12), raw(DType::kBf16, {vocab, d}, 13), base(DType::kBf16, {kVocab, d}, 14);
  const Stored a(DType::kBf16, {3, d}, 15), b(DType::kF32, {vocab, 3}, 16);
  const Stored a2(DType::kF16, {1, d}, 17), b2(DType::kF16, {vocab, 1}, 18);
  const std::vector<int32_t> index = {3, 40, 70, 71, 72, 73, 74};
  for (const bool has_raw : {false, true}) {
    LinearDelta delta;
    delta.d_out = vocab;
    delta.d_in = d;
    delta.planes.push_back({.bits = bits, .scale = 0.5F, .row_scale = row_scale.view, .col_scale = col_scale.view});
    delta.planes.push_back({.bits = bits, .scale = 0.125F, .row_scale = {}, .col_scale = {}});
    delta.rows = ReplacedRows{.index = index, .values = rows.view};
    delta.low_rank.push_back({.a = a.view, .b = b.view, .scale = 0.5F});
    delta.low_rank.push_back({.a = a2.view, .b = b2.view, .scale = -0.25F});
    delta.gain_row = gain.view;
    if (has_raw) delta.raw = raw.view;
    const auto expected = [&](size_t token, size_t col) {
      const double g = double{FloatAt(gain.view, token)};
      double low = -0.25 * double{FloatAt(b2.view, token)} * double{FloatAt(a2.view, col)};
      for (size_t j = 0; j < 3; ++j) {
        low += 0.5 * double{FloatAt(b.view, token * 3 + j)} * double{FloatAt(a.view, j * d + col)};
      }
      for (size_t k = 0; k < index.size(); ++k) {
        if (static_cast<size_t>(index[k]) == token) return g * (double{FloatAt(rows.view, k * d + col)} + low);
      }
      double w = double{FloatAt(has_raw ? raw.view : base.view, token * d + col)};
      const double sign = (bits[token * SignRowBytes(d) + col / 8] >> (col % 8) & 1) != 0 ? 1 : -1;
      w += sign * 0.5 * double{FloatAt(row_scale.view, token)} * double{FloatAt(col_scale.view, col)} + sign * 0.125;
      return g * (w + low);
    };
    for (const std::string& target : AvailableTargets()) {
      ASSERT_TRUE(SetTarget(target).ok());
      KernelContext context(3);
      const PackedWeight table = PackWeight(context, base.view);
      const PackedDelta packed = PackDelta(context, delta);
      std::vector<int32_t> tokens(vocab);
      for (size_t i = 0; i < vocab; ++i) tokens[i] = static_cast<int32_t>(i);
      Mat<float> out(vocab, d);
      const LinearSegment segment = {.begin = 0, .end = vocab, .delta = &packed};
      Embed(context, table, {&segment, 1}, tokens, out.view());
      for (size_t i = 0; i < vocab * d; ++i) {
        // (2 planes * 2 + rank 4 + 3) roundings of values below 3.4.
        ASSERT_NEAR(double{out.Row(0)[i]}, expected(i / d, i % d), 11 * 3.4 * 0x1.0p-24) << target << " element " << i;
      }
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

TEST(Embed, AddsRowsOfBytesToWhatThereIs) {
  const size_t d = 77, vocab = 75;  // 5 of them new
  const Stored base(DType::kBf16, {kVocab, d}, 21), steps(DType::kF32, {4}, 22);
  const std::vector<int32_t> index = {0, 33, 69, 74};
  std::vector<uint8_t> q(index.size() * d);
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<uint8_t>(RandomBits(23, i));
  LinearDelta delta;
  delta.d_out = vocab;
  delta.d_in = d;
  delta.byte_rows = ByteRows{.index = index, .values = {DType::kI8, {index.size(), d}, q}, .step = steps.view};
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    KernelContext context(2);
    const PackedWeight table = PackWeight(context, base.view);
    const PackedDelta packed = PackDelta(context, delta);
    std::vector<int32_t> tokens(vocab);
    for (size_t i = 0; i < vocab; ++i) tokens[i] = static_cast<int32_t>(i);
    Mat<float> out(vocab, d);
    const LinearSegment segment = {.begin = 0, .end = vocab, .delta = &packed};
    Embed(context, table, {&segment, 1}, tokens, out.view());
    for (size_t token = 0; token < vocab; ++token) {
      const auto found = std::ranges::find(index, static_cast<int32_t>(token));
      for (size_t col = 0; col < d; ++col) {
        double want = token < kVocab ? double{FloatAt(base.view, token * d + col)} : 0.0;
        if (found != index.end()) {
          const auto place = static_cast<size_t>(found - index.begin());
          want += double{FloatAt(steps.view, place)} * static_cast<int8_t>(q[place * d + col]);
        }
        ASSERT_NEAR(double{out.Row(token)[col]}, want, 2 * 129 * 0x1.0p-24) << target << " token " << token;
      }
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

}  // namespace
}  // namespace df::kernels
