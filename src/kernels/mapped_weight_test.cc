// A weight that stays as stored: products and rows have the bits of the packed one, on every target.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "kernels/embed.h"
#include "kernels/linear.h"
#include "kernels/linear_fixture.h"
#include "kernels/target.h"

namespace df::kernels {
namespace {

struct Twin {
  Twin(size_t d_out, size_t d_in, DType dtype, uint64_t seed) : store(seed), context(2) {
    const TensorView stored = store.Random(dtype, {d_out, d_in}, -0.1F, 0.1F);
    // Files keep no alignment: one byte off, nothing behind.
    std::vector<uint8_t>& shifted = store.Keep(std::vector<uint8_t>(stored.bytes.size() + 1));
    std::memcpy(shifted.data() + 1, stored.bytes.data(), stored.bytes.size());
    packed.weight = PackWeight(context, stored);
    mapped.weight = MapWeight({dtype, {d_out, d_in}, Bytes(shifted).subspan(1)});
  }

  TensorStore store;
  KernelContext context;
  LinearWeight packed, mapped;
};

void ExpectTheSameBits(Twin& twin, std::span<const LinearSegment> segments, size_t max_out, const std::string& what) {
  const size_t n = segments.back().end;
  const Mat<float> x = RandomRows(twin.store, n, twin.packed.weight.d_in);
  Mat<float> from_packed(n, max_out), from_mapped(n, max_out);
  for (const PrefillDtype prefill_dtype : PossiblePrefillDtypes()) {
    twin.context.options.prefill_dtype = prefill_dtype;
    Linear(twin.context, twin.packed, segments, x.view(), from_packed.view());
    Linear(twin.context, twin.mapped, segments, x.view(), from_mapped.view());
    ASSERT_EQ(std::memcmp(from_packed.Row(0), from_mapped.Row(0), from_packed.size_bytes()), 0) << what;
  }
}

constexpr DType kTypes[] = {DType::kBf16, DType::kF16, DType::kF32};

TEST(MappedWeight, GivesTheBitsOfAPackedOneForEveryTypeSizeAndRowCount) {
  constexpr size_t kSizes[][2] = {{1, 1}, {31, 7}, {64, 128}, {97, 530}, {128, 640}, {160, 1536}};
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    for (const DType dtype : kTypes) {
      for (const auto& [d_out, d_in] : kSizes) {
        Twin twin(d_out, d_in, dtype, d_in);
        for (const size_t n : {1U, 2U, 3U, 13U, 40U}) {
          for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
            const LinearSegment segment = {.begin = 0, .end = n, .phase = phase};
            ExpectTheSameBits(twin, {&segment, 1}, d_out,
                              target + " " + std::string(DTypeName(dtype)) + " " + std::to_string(d_out) + " x " +
                                  std::to_string(d_in) + ", rows " + std::to_string(n));
          }
        }
      }
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

TEST(MappedWeight, GivesTheBitsOfAPackedOneUnderVariants) {
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    for (const size_t d_in : {530U, 640U}) {
      for (const SignKernel kernel : {SignKernel::kExact, SignKernel::kLookup}) {
        Twin twin(97, d_in, DType::kBf16, 3);
        twin.context.options = {.sign_kernel = kernel, .batch_invariant = false};
        std::vector<LinearDelta> deltas;
        deltas.push_back(RandomDelta(twin.store, 97, d_in, {.planes = 1, .row_scale = true}));
        deltas.push_back(
            RandomDelta(twin.store, 97, d_in, {.planes = 2, .col_scale = true, .ranks = {5}, .gain = true}));
        deltas.push_back(RandomDelta(twin.store, 120, d_in, {.ranks = {16}, .rows = {1, 96, 97, 119}, .bias = true}));
        deltas.push_back(RandomDelta(twin.store, 161, d_in, {.planes = 1, .row_scale = true}));
        deltas.push_back(RandomDelta(twin.store, 97, d_in, {.planes = 1, .raw = true}));
        std::vector<PackedDelta> packed;
        for (const LinearDelta& delta : deltas) packed.push_back(PackDelta(twin.context, delta));
        std::vector<LinearSegment> segments;
        for (const size_t rows : {1U, 6U, 20U}) {
          for (const PackedDelta& delta : packed) {
            for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
              const size_t begin = segments.empty() ? 0 : segments.back().end;
              segments.push_back({.begin = begin, .end = begin + rows, .phase = phase, .delta = &delta});
            }
          }
        }
        ExpectTheSameBits(twin, segments, 161, target + " mixed");
        for (const LinearSegment& segment : segments) {
          const LinearSegment alone = {
              .begin = 0, .end = segment.end - segment.begin, .phase = segment.phase, .delta = segment.delta};
          ExpectTheSameBits(twin, {&alone, 1}, 161, target + " alone");
        }
      }
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

TEST(MappedWeight, GivesTheRowsOfAPackedTable) {
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    for (const DType dtype : kTypes) {
      for (const size_t d : {1U, 7U, 64U, 513U}) {
        Twin twin(70, d, dtype, d);
        const LinearDelta delta = RandomDelta(twin.store, 75, d, {.planes = 1, .rows = {3, 72}, .gain = true});
        const PackedDelta packed = PackDelta(twin.context, delta);
        const std::vector<LinearSegment> segments = {{.begin = 0, .end = 4}, {.begin = 4, .end = 9, .delta = &packed}};
        const std::vector<int32_t> tokens = {0, 69, 31, 32, 0, 3, 69, 72, 74};
        Mat<float> from_packed(9, d), from_mapped(9, d);
        Embed(twin.context, twin.packed.weight, segments, tokens, from_packed.view());
        Embed(twin.context, twin.mapped.weight, segments, tokens, from_mapped.view());
        ASSERT_EQ(std::memcmp(from_packed.Row(0), from_mapped.Row(0), from_packed.size_bytes()), 0) << target;
      }
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

TEST(MappedWeight, HoldsNothing) {
  const std::vector<uint8_t> bytes(32 * 8 * 2);
  const PackedWeight weight = MapWeight({DType::kBf16, {32, 8}, bytes});
  EXPECT_TRUE(weight.tiles.empty());
  EXPECT_EQ(weight.mapped.data(), bytes.data());
  EXPECT_EQ(weight.bytes(), bytes.size());
}

}  // namespace
}  // namespace df::kernels
