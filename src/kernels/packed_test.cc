#include "kernels/packed.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "base/float16.h"
#include "base/rng.h"
#include "kernels/linear_fixture.h"
#include "kernels/target.h"
#include "testing/memory_policy.h"

namespace df::kernels {
namespace {

std::vector<uint8_t> RandomBytes(size_t n, uint64_t seed) {
  std::vector<uint8_t> bytes(n);
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<uint8_t>(RandomBits(seed, i));
  return bytes;
}

uint32_t Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

struct Shape2 {
  size_t d_out;
  size_t d_in;
};
const std::vector<Shape2> kShapes = {{1, 1}, {31, 7}, {32, 32}, {33, 64}, {72, 100}, {64, 513}, {257, 130}, {40, 4104}};

TEST(PackWeight, KeepsEveryElementOnEveryTarget) {
  KernelContext context(2);
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
      for (const Shape2 shape : kShapes) {
        // One byte off: stored tensors may be misaligned.
        const std::vector<uint8_t> bytes = RandomBytes(shape.d_out * shape.d_in * DTypeBytes(dtype) + 1, shape.d_in);
        const TensorView view = {dtype, {shape.d_out, shape.d_in}, Bytes(bytes).subspan(1)};
        const PackedWeight packed = PackWeight(context, view);
        for (size_t i = 0; i < shape.d_out * shape.d_in; ++i) {
          ASSERT_EQ(Bits(packed.At(i / shape.d_in, i % shape.d_in)), Bits(FloatAt(view, i)))
              << target << " " << DTypeName(dtype) << " " << shape.d_out << "x" << shape.d_in << " element " << i;
        }
      }
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

TEST(PackWeight, IsTheSameBytesOnEveryTargetAndPadsWithZeros) {
  const Shape2 shape = {45, 77};
  for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
    const std::vector<uint8_t> bytes = RandomBytes(shape.d_out * shape.d_in * DTypeBytes(dtype), 3);
    const TensorView view = {dtype, {shape.d_out, shape.d_in}, bytes};
    KernelContext context(1);
    ASSERT_TRUE(SetTarget("scalar").ok());
    const PackedWeight oracle = PackWeight(context, view);
    ASSERT_EQ(oracle.bytes(), 64 * 78 * DTypeBytes(dtype));
    for (size_t row = shape.d_out; row < 64; ++row) EXPECT_EQ(oracle.At(row, 5), 0.0F);
    EXPECT_EQ(oracle.At(3, 77), 0.0F);
    for (const std::string& target : AvailableTargets()) {
      ASSERT_TRUE(SetTarget(target).ok());
      const PackedWeight packed = PackWeight(context, view);
      EXPECT_EQ(std::memcmp(packed.tiles.data(), oracle.tiles.data(), oracle.bytes()), 0) << target;
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

TEST(PackWeight, GivesTheSourceBackInOrderAndWhole) {
  KernelContext context(2);
  const size_t d_in = 4096;
  const size_t d_out = 3001;  // 24 MB: several parts
  const std::vector<uint8_t> bytes(d_out * d_in * 2, 0x3C);
  struct Seen {
    const uint8_t* next;
    size_t calls = 0;
  } seen = {bytes.data()};
  const auto release = [](void* user, Bytes part) {
    auto* s = static_cast<Seen*>(user);
    EXPECT_EQ(part.data(), s->next);
    s->next = part.data() + part.size();
    ++s->calls;
  };
  const PackedWeight packed = PackWeight(context, {DType::kBf16, {d_out, d_in}, bytes}, release, &seen);
  EXPECT_EQ(seen.next, bytes.data() + bytes.size());
  EXPECT_GE(seen.calls, 3u);
  EXPECT_EQ(packed.At(3000, 4095), ToFloat(Bf16{0x3C3C}));
}

TEST(PackDelta, KeepsSignsAndScalesOnEveryTarget) {
  KernelContext context(2);
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    for (const Shape2 shape : kShapes) {
      const size_t row_bytes = SignRowBytes(shape.d_in);
      const std::vector<uint8_t> bits = RandomBytes(shape.d_out * row_bytes, 11);
      std::vector<float> row(shape.d_out), col(shape.d_in);
      for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(i) - 5;
      for (size_t i = 0; i < col.size(); ++i) col[i] = 1 + static_cast<float>(i);
      LinearDelta delta;
      delta.d_out = shape.d_out;
      delta.d_in = shape.d_in;
      delta.planes.push_back(
          {.bits = bits,
           .scale = -0.5F,
           .row_scale = TensorView{DType::kF32, {row.size()}, AsBytes(std::span<const float>(row))},
           .col_scale = TensorView{DType::kF32, {col.size()}, AsBytes(std::span<const float>(col))}});
      delta.planes.push_back({.bits = bits, .scale = 0.25F, .row_scale = {}, .col_scale = {}});
      const PackedDelta packed = PackDelta(context, delta);
      for (size_t r = 0; r < shape.d_out; ++r) {
        for (size_t c = 0; c < shape.d_in; ++c) {
          const float sign = (bits[r * row_bytes + c / 8] >> (c % 8) & 1) != 0 ? 1.0F : -1.0F;
          ASSERT_EQ(packed.planes[0].At(r, c), -0.5F * row[r] * col[c] * sign) << target;
          ASSERT_EQ(packed.planes[1].At(r, c), 0.25F * sign) << target;
        }
      }
      EXPECT_EQ(packed.planes[0].row_scale.size() % kTileRows, 0u);
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

TEST(PackDelta, HoldsALowRankPairInAboutItsStoredBytes) {
  KernelContext context(1);
  const size_t d_out = 1024, d_in = 1000, rank = 9;
  const std::vector<uint8_t> a = RandomBytes(rank * d_in * 2, 1), b = RandomBytes(d_out * rank * 2, 2);
  LinearDelta delta;
  delta.d_out = d_out;
  delta.d_in = d_in;
  delta.low_rank.push_back({{DType::kF16, {rank, d_in}, a}, {DType::kF16, {d_out, rank}, b}, 2.0F});
  const PackedDelta packed = PackDelta(context, delta);
  EXPECT_EQ(packed.low_rank[0].rank, rank);
  EXPECT_EQ(packed.bytes(), (rank * d_in + d_out * (rank + 1)) * 2);
  EXPECT_EQ(packed.low_rank[0].a.At(8, 999), FloatAt(delta.low_rank[0].a, 8 * d_in + 999));
}

TEST(PackDelta, IsBorrowedWithoutMemoryOfItsOwn) {
  KernelContext context(1);
  TensorStore store(5);
  const LinearDelta stored = RandomDelta(store, 40, 24,
                                         {.planes = 2,
                                          .row_scale = true,
                                          .col_scale = true,
                                          .ranks = {3},
                                          .rows = {7},
                                          .raw = true,
                                          .gain = true,
                                          .bias = true});
  const PackedDelta delta = PackDelta(context, stored);
  EXPECT_EQ(delta.owned_bytes(), delta.bytes());
  const PackedDelta borrowed = Borrow(delta);
  EXPECT_EQ(borrowed.bytes(), delta.bytes());
  EXPECT_EQ(borrowed.owned_bytes(), sizeof(int32_t));  // the index of the replaced row
  EXPECT_EQ(borrowed.planes[1].bits.data(), delta.planes[1].bits.data());
  EXPECT_EQ(borrowed.raw->tiles.data(), delta.raw->tiles.data());
  EXPECT_EQ(borrowed.rows->values.Row(0), delta.rows->values.Row(0));
  EXPECT_EQ(borrowed.low_rank[0].b.At(39, 2), delta.low_rank[0].b.At(39, 2));
}

TEST(PackDelta, IsTheSameInAnArena) {
  KernelContext context(1);
  TensorStore store(5);
  const LinearDelta stored = RandomDelta(
      store, 45, 77, {.planes = 1, .row_scale = true, .ranks = {3}, .rows = {7}, .raw = true, .bias = true});
  const PackedDelta own = PackDelta(context, stored);
  Arena arena(ArenaBytes(stored));
  const PackedDelta carved = PackDelta(context, stored, &arena);
  ASSERT_EQ(carved.planes.size(), 1u);
  EXPECT_TRUE(std::ranges::equal(carved.planes[0].bits.span(), own.planes[0].bits.span()));
  EXPECT_TRUE(std::ranges::equal(carved.planes[0].row_scale.span(), own.planes[0].row_scale.span()));
  EXPECT_TRUE(std::ranges::equal(carved.low_rank[0].a.values.span(), own.low_rank[0].a.values.span()));
  EXPECT_TRUE(std::ranges::equal(carved.low_rank[0].b.tiles.span(), own.low_rank[0].b.tiles.span()));
  EXPECT_TRUE(std::ranges::equal(carved.raw->tiles.span(), own.raw->tiles.span()));
  EXPECT_TRUE(std::ranges::equal(carved.bias.span(), own.bias.span()));
}

// As a store's loader does it: one thread packs what an engine of two will read, on two nodes. No machine has the
// second one of these, so that asking for it changes nothing.
TEST(PackDelta, PlacesSignsByTheThreadsThatWillReadThem) {
  constexpr size_t kSize = 8192, kNoNode = 900;
  const std::vector<uint8_t> bits(kSize * kSize / 8);
  LinearDelta stored;
  stored.d_out = stored.d_in = kSize;
  stored.planes.push_back({.bits = bits, .row_scale = {}, .col_scale = {}});
  KernelContext context(1);
  context.readers = {.nodes = {{.id = 0, .cpus = {0}}, {.id = kNoNode, .cpus = {1}}}, .n_threads = 2};
  Arena arena(ArenaBytes(stored));
  const PackedDelta delta = PackDelta(context, stored, &arena);
  const uint8_t* const packed = delta.planes[0].bits.data();
  const auto first = testing::MemoryPolicyAt(packed + bits.size() / 4);
  const auto second = testing::MemoryPolicyAt(packed + bits.size() / 4 * 3);
  if (!first) GTEST_SKIP() << "the system has no memory policies";
  EXPECT_EQ(first->mode, 1);
  EXPECT_EQ(first->mask, 1U);
  EXPECT_EQ(second->mode, 0) << "all of it was asked of the first node";
}

// Every part of a delta, alone and together: what a load will hold is known before it.
TEST(PackedBytes, IsWhatPackDeltaHolds) {
  KernelContext context(1);
  for (const Shape2 shape : kShapes) {
    const std::vector<uint8_t> bits(shape.d_out * SignRowBytes(shape.d_in));
    const std::vector<uint8_t> floats((shape.d_out + 8) * (shape.d_in + 8) * 4);
    const auto view = [&](DType dtype, const Shape& dims) {
      return TensorView{dtype, dims, Bytes(floats).first(*dims.TryElements() * DTypeBytes(dtype))};
    };
    for (unsigned parts = 0; parts < 256; ++parts) {
      const DType dtype = std::array{DType::kBf16, DType::kF16, DType::kF32}[parts % 3];
      LinearDelta delta;
      delta.d_out = shape.d_out;
      delta.d_in = shape.d_in;
      if ((parts & 1) != 0) delta.planes.push_back({.bits = bits, .row_scale = view(DType::kBf16, {shape.d_out})});
      if ((parts & 2) != 0) delta.planes.push_back({.bits = bits, .col_scale = view(DType::kF32, {shape.d_in})});
      if ((parts & 4) != 0) {
        delta.low_rank.push_back({.a = view(dtype, {5, shape.d_in}), .b = view(dtype, {shape.d_out, 5})});
      }
      if ((parts & 8) != 0) delta.rows = ReplacedRows{.index = {0}, .values = view(dtype, {1, shape.d_in})};
      if ((parts & 16) != 0) delta.raw = view(dtype, {shape.d_out, shape.d_in});
      if ((parts & 32) != 0) delta.gain_row = view(DType::kF32, {shape.d_out});
      if ((parts & 64) != 0) delta.bias = view(dtype, {shape.d_out});
      if ((parts & 128) != 0) {
        delta.byte_rows =
            ByteRows{.index = {0}, .values = view(DType::kI8, {1, shape.d_in}), .step = view(DType::kF32, {1})};
      }
      ASSERT_EQ(PackedBytes(delta), PackDelta(context, delta).bytes()) << parts;
      Arena arena(ArenaBytes(delta));
      ASSERT_EQ(PackedBytes(delta), PackDelta(context, delta, &arena).owned_bytes()) << parts;
      const size_t index_bytes = ((parts & 8) / 8 + (parts & 128) / 128) * sizeof(int32_t);  // vectors beside the arena
      ASSERT_GE(arena.taken_bytes() + index_bytes, PackedBytes(delta)) << parts << ": a buffer lies outside";
    }
  }
}

}  // namespace
}  // namespace df::kernels
