#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "base/float16.h"
#include "base/rng.h"
#include "kernels/target.h"

namespace df::kernels {
namespace {

struct Geometry {
  size_t n_heads = 4;
  size_t n_kv_heads = 2;
  size_t head_dim = 64;
  DType dtype = DType::kF32;
  size_t window = 0;
};

// Uniform with unit variance.
float RandomFloat(uint64_t seed, uint64_t k) { return static_cast<float>((RandomUnit(seed, k) - 0.5) * 3.4641016); }

Mat<float> RandomMat(size_t rows, size_t cols, uint64_t seed) {
  Mat<float> m(rows, cols);
  for (size_t i = 0; i < rows * cols; ++i) m.Row(0)[i] = RandomFloat(seed, i);
  return m;
}

// One sequence: its q, k, v, and a block table scattered over the pool.
struct Sequence {
  Mat<float> q, k, v, out;
  std::vector<int32_t> blocks;
  size_t n_tokens = 0;
};

// A pool for some sequences; what no token was written to holds NaN.
struct World {
  Geometry g;
  Buffer<uint8_t> keys, values;
  std::vector<Sequence> sequences;

  World(const Geometry& geometry, const std::vector<size_t>& lengths) : g(geometry) {
    size_t n_blocks = 0;
    for (const size_t n : lengths) n_blocks += (n + kKvBlockTokens - 1) / kKvBlockTokens;
    const size_t n_bytes = (n_blocks + 1) * g.n_kv_heads * kKvBlockTokens * g.head_dim * DTypeBytes(g.dtype);
    keys = Buffer<uint8_t>(n_bytes);
    values = Buffer<uint8_t>(n_bytes);
    std::memset(keys.data(), 0xFF, n_bytes);
    std::memset(values.data(), 0xFF, n_bytes);
    size_t next = 0;
    for (const size_t n : lengths) {
      Sequence s;
      const uint64_t seed = sequences.size() * 10 + 1;
      s.n_tokens = n;
      s.q = RandomMat(n, g.n_heads * g.head_dim, seed);
      s.k = RandomMat(n, g.n_kv_heads * g.head_dim, seed + 1);
      s.v = RandomMat(n, g.n_kv_heads * g.head_dim, seed + 2);
      s.out = Mat<float>(n, g.n_heads * g.head_dim);
      for (size_t b = 0; b < (n + kKvBlockTokens - 1) / kKvBlockTokens; ++b, ++next) {
        s.blocks.push_back(static_cast<int32_t>(n_blocks - next));
      }
      sequences.push_back(std::move(s));
    }
  }

  KvLayerView kv() {
    return {.dtype = g.dtype,
            .keys = keys.data(),
            .values = values.data(),
            .n_kv_heads = g.n_kv_heads,
            .head_dim = g.head_dim};
  }
  AttentionOptions options() const {
    return {.n_heads = g.n_heads, .scale = 1.0F / std::sqrt(static_cast<float>(g.head_dim)), .window = g.window};
  }

  // Tokens [begin, end) of one sequence as a step of their own.
  void Step(KernelContext& context, size_t sequence, size_t begin, size_t end, Phase phase = Phase::kPrefill) {
    Sequence& s = sequences[sequence];
    const SequenceSegment segment = {
        .begin = 0, .end = end - begin, .phase = phase, .position = begin, .block_table = s.blocks.data()};
    WriteKv(context, {&segment, 1}, s.k.Rows(begin, end), s.v.Rows(begin, end), kv());
    Attention(context, {&segment, 1}, s.q.Rows(begin, end), kv(), options(), s.out.Rows(begin, end));
  }
};

float Stored(const World& world, float x) { return world.g.dtype == DType::kBf16 ? ToFloat(ToBf16(x)) : x; }

// The output of one query head in f64, with what bounds an f32 computation's error: sum_d |q_d k_d| and sum p |v|.
struct Exact {
  std::vector<double> out;
  double max_score_size = 0;
  double max_value = 0;
};

Exact ExactAttention(const World& world, const Sequence& s, size_t position, size_t head) {
  const Geometry& g = world.g;
  const size_t kv_head = head / (g.n_heads / g.n_kv_heads);
  const size_t begin = g.window != 0 && position + 1 > g.window ? position + 1 - g.window : 0;
  Exact exact;
  std::vector<double> scores;
  for (size_t j = begin; j <= position; ++j) {
    double score = 0, size = 0;
    for (size_t d = 0; d < g.head_dim; ++d) {
      const double term = double{s.q.Row(position)[head * g.head_dim + d]} *
                          double{Stored(world, s.k.Row(j)[kv_head * g.head_dim + d])};
      score += term;
      size += std::abs(term);
    }
    scores.push_back(score * double{world.options().scale});
    exact.max_score_size = std::max(exact.max_score_size, size * double{world.options().scale});
  }
  const double top = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  exact.out.assign(g.head_dim, 0.0);
  for (size_t j = begin; j <= position; ++j) {
    const double weight = std::exp(scores[j - begin] - top);
    total += weight;
    for (size_t d = 0; d < g.head_dim; ++d) {
      const double v = double{Stored(world, s.v.Row(j)[kv_head * g.head_dim + d])};
      exact.out[d] += weight * v;
      exact.max_value = std::max(exact.max_value, std::abs(v));
    }
  }
  for (double& x : exact.out) x /= total;
  return exact;
}

// A score is off by at most (head_dim + 4) eps * sum|qk|, hence a weight by twice that (top included) relatively, plus
// 4 eps of exp; the two sums over the context add at most (64 + context/64 + 8) eps: spans are 64 long, each with one
// rescaling, and a part of 4 spans with two more.
double Tolerance(const World& world, const Exact& exact, size_t context_tokens) {
  const double eps = 0x1.0p-24;
  const double score = (static_cast<double>(world.g.head_dim) + 4) * exact.max_score_size;
  const double sums = 2 * (72 + static_cast<double>(context_tokens) / 64 * 2);
  return eps * exact.max_value * (4 * score + 8 + sums);
}

void ExpectExact(World& world, size_t sequence, const std::string& what) {
  Sequence& s = world.sequences[sequence];
  for (size_t position = 0; position < s.n_tokens; ++position) {
    for (size_t head = 0; head < world.g.n_heads; ++head) {
      const Exact exact = ExactAttention(world, s, position, head);
      const double tolerance = Tolerance(world, exact, position + 1);
      for (size_t d = 0; d < world.g.head_dim; ++d) {
        ASSERT_NEAR(double{s.out.Row(position)[head * world.g.head_dim + d]}, exact.out[d], tolerance)
            << what << " position " << position << " head " << head << " dim " << d;
      }
    }
  }
}

std::string Name(const Geometry& g) {
  return std::to_string(g.n_heads) + "/" + std::to_string(g.n_kv_heads) + " heads of " + std::to_string(g.head_dim) +
         " " + std::string(DTypeName(g.dtype)) + " window " + std::to_string(g.window);
}

std::vector<Geometry> Geometries() {
  std::vector<Geometry> all;
  for (const size_t head_dim : {2U, 18U, 32U, 64U, 80U, 96U, 128U, 256U}) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      all.push_back({.n_heads = 4, .n_kv_heads = 2, .head_dim = head_dim, .dtype = dtype, .window = 0});
    }
  }
  all.push_back({.n_heads = 3, .n_kv_heads = 3, .head_dim = 32, .dtype = DType::kF32, .window = 5});
  all.push_back({.n_heads = 7, .n_kv_heads = 1, .head_dim = 18, .dtype = DType::kBf16, .window = 16});
  all.push_back({.n_heads = 8, .n_kv_heads = 2, .head_dim = 24, .dtype = DType::kF32, .window = 1});
  all.push_back({.n_heads = 80, .n_kv_heads = 1, .head_dim = 8, .dtype = DType::kF32, .window = 33});
  all.push_back({.n_heads = 2, .n_kv_heads = 1, .head_dim = 40, .dtype = DType::kBf16, .window = 70});
  return all;
}

TEST(Attention, AgreesWithTheExactSumsOnEveryTarget) {
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    for (const Geometry& g : Geometries()) {
      World world(g, {g.head_dim > 70 || target == "scalar" ? 70U : 150U});
      KernelContext context(2);
      world.Step(context, 0, 0, world.sequences[0].n_tokens);
      ExpectExact(world, 0, target + " " + Name(g));
      if (HasFatalFailure()) return;
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

bool SameBits(const Mat<float>& a, const Mat<float>& b) {
  return a.size_bytes() == b.size_bytes() && std::memcmp(a.Row(0), b.Row(0), a.size_bytes()) == 0;
}

// Prefill in chunks of `chunk` with `threads`; 1 goes through the decode phase.
Mat<float> OutputsInChunks(const Geometry& g, size_t n_tokens, size_t chunk, size_t threads) {
  World world(g, {n_tokens});
  KernelContext context(threads);
  for (size_t at = 0; at < n_tokens; at += chunk) {
    world.Step(context, 0, at, std::min(n_tokens, at + chunk), chunk == 1 ? Phase::kDecode : Phase::kPrefill);
  }
  return std::move(world.sequences[0].out);
}

TEST(Attention, GivesTheSameBitsForEveryChunkingPhaseAndThreadCount) {
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    for (const Geometry& g : Geometries()) {
      const size_t n_tokens = target == "scalar" ? 40 : 171;
      const Mat<float> whole = OutputsInChunks(g, n_tokens, n_tokens, 1);
      for (const size_t chunk : {1U, 7U, 16U, 33U}) {
        EXPECT_TRUE(SameBits(whole, OutputsInChunks(g, n_tokens, chunk, 1 + chunk % 3)))
            << target << " " << Name(g) << " chunk " << chunk;
      }
      EXPECT_TRUE(SameBits(whole, OutputsInChunks(g, n_tokens, n_tokens, 3))) << target << " " << Name(g);
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

// One step over all sequences: the first by its last token alone, the others whole, with a gap of unused rows between.
TEST(Attention, GivesTheSameBitsAloneAndInAMixedBatch) {
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    for (const size_t window : {0U, 20U}) {
      const Geometry g = {.n_heads = 6, .n_kv_heads = 2, .head_dim = 48, .dtype = DType::kBf16, .window = window};
      const std::vector<size_t> lengths = {130, 17, 64, 1};
      World alone(g, lengths);
      KernelContext one(1);
      for (size_t i = 0; i < lengths.size(); ++i) alone.Step(one, i, 0, lengths[i]);

      World mixed(g, lengths);
      KernelContext three(3);
      mixed.Step(three, 0, 0, lengths[0] - 1);
      Mat<float> q(200, g.n_heads * g.head_dim), out(200, g.n_heads * g.head_dim);
      Mat<float> k(200, g.n_kv_heads * g.head_dim), v(200, g.n_kv_heads * g.head_dim);
      std::vector<SequenceSegment> segments;
      size_t row = 0;
      for (size_t i = 0; i < lengths.size(); ++i) {
        Sequence& s = mixed.sequences[i];
        const size_t first = i == 0 ? lengths[0] - 1 : 0;
        const size_t n = lengths[i] - first;
        std::memcpy(q.Row(row), s.q.Row(first), n * g.n_heads * g.head_dim * sizeof(float));
        std::memcpy(k.Row(row), s.k.Row(first), n * g.n_kv_heads * g.head_dim * sizeof(float));
        std::memcpy(v.Row(row), s.v.Row(first), n * g.n_kv_heads * g.head_dim * sizeof(float));
        segments.push_back({.begin = row,
                            .end = row + n,
                            .phase = n == 1 ? Phase::kDecode : Phase::kPrefill,
                            .position = first,
                            .block_table = s.blocks.data()});
        row += n + 2;
      }
      WriteKv(three, segments, k.view(), v.view(), mixed.kv());
      Attention(three, segments, q.view(), mixed.kv(), mixed.options(), out.view());
      for (size_t i = 0; i < lengths.size(); ++i) {
        const size_t n = segments[i].end - segments[i].begin;
        EXPECT_EQ(std::memcmp(out.Row(segments[i].begin), alone.sequences[i].out.Row(lengths[i] - n),
                              n * g.n_heads * g.head_dim * sizeof(float)),
                  0)
            << target << " sequence " << i;
      }
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

// Long context: scratch must not grow with it, and only the window may be read (what lies before holds NaN).
TEST(Attention, ReadsTheWindowOnlyAndNeedsNoMoreScratchForALongContext) {
  const Geometry g = {.n_heads = 2, .n_kv_heads = 1, .head_dim = 64, .dtype = DType::kF32, .window = 100};
  World world(g, {32768});
  KernelContext context(1);
  for (size_t at = 32000; at < 32768; at += 256) {
    Sequence& s = world.sequences[0];
    const SequenceSegment segment = {
        .begin = 0, .end = 256, .phase = Phase::kPrefill, .position = at, .block_table = s.blocks.data()};
    WriteKv(context, {&segment, 1}, s.k.Rows(at, at + 256), s.v.Rows(at, at + 256), world.kv());
  }
  const SequenceSegment last = {.begin = 0,
                                .end = 512,
                                .phase = Phase::kPrefill,
                                .position = 32256,
                                .block_table = world.sequences[0].blocks.data()};
  Mat<float> out(512, 128);
  Attention(context, {&last, 1}, world.sequences[0].q.Rows(32256, 32768), world.kv(), world.options(), out.view());
  for (size_t i = 0; i < 512 * 128; ++i) ASSERT_TRUE(std::isfinite(out.Row(0)[i])) << i;
  EXPECT_LT(context.scratch.bytes(), size_t{256} << 10);
}

TEST(Attention, PassesNanOnToItsOwnRowOnly) {
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    World world({.n_heads = 2, .n_kv_heads = 1, .head_dim = 32, .dtype = DType::kF32, .window = 0}, {40});
    world.sequences[0].q.Row(20)[3] = std::nanf("");
    KernelContext context(1);
    world.Step(context, 0, 0, 40);
    for (size_t position = 0; position < 40; ++position) {
      EXPECT_EQ(std::isnan(world.sequences[0].out.Row(position)[0]), position == 20) << target << " " << position;
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

TEST(WriteKv, RoundsToBf16AsTheScalarConversionDoes) {
  const Geometry g = {.n_heads = 1, .n_kv_heads = 1, .head_dim = 54, .dtype = DType::kBf16, .window = 0};
  for (const std::string& target : AvailableTargets()) {
    ASSERT_TRUE(SetTarget(target).ok());
    World world(g, {16});
    Sequence& s = world.sequences[0];
    for (size_t i = 0; i < 16 * g.head_dim; ++i) {
      const auto bits = static_cast<uint32_t>(RandomBits(9, i));
      std::memcpy(s.k.Row(0) + i, &bits, sizeof(bits));  // any bits: NaN, infinities, subnormals
    }
    KernelContext context(1);
    world.Step(context, 0, 0, 16);
    const size_t block = static_cast<size_t>(s.blocks[0]) * kKvBlockTokens * g.head_dim;
    const Bf16* keys = reinterpret_cast<const Bf16*>(world.keys.data()) + block;
    const Bf16* values = reinterpret_cast<const Bf16*>(world.values.data()) + block;
    for (size_t token = 0; token < 16; ++token) {
      for (size_t dim = 0; dim < g.head_dim; ++dim) {
        EXPECT_EQ(keys[(dim / 2 * 16 + token) * 2 + dim % 2].bits, ToBf16(s.k.Row(token)[dim]).bits) << target;
        EXPECT_EQ(values[token * g.head_dim + dim].bits, ToBf16(s.v.Row(token)[dim]).bits) << target;
      }
    }
  }
  ASSERT_TRUE(SetTarget("auto").ok());
}

}  // namespace
}  // namespace df::kernels
