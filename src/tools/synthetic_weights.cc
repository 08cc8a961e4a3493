#include "tools/synthetic_weights.h"

#include <algorithm>
#include <array>

#include "base/float16.h"
#include "base/rng.h"
#include "tools/synthetic_shape.h"

namespace df::tools {
namespace {

// A random byte selects one of 256 values: eight weights a draw, so that gigabytes take seconds.
std::array<Bf16, 256> WeightValues() {
  std::array<Bf16, 256> values;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = ToBf16(kSyntheticBound * (static_cast<float>(i) - 128.0F) / 128.0F);
  }
  return values;
}

void ZeroPadding(kernels::PackedWeight& weight, Bf16* tiles) {
  const size_t padded_rows = weight.n_tiles() * kernels::kTileRows;
  const size_t n_pairs = (weight.d_in + 1) / 2;
  const auto at = [&](size_t row, size_t col) -> Bf16& {
    const size_t tile = row / kernels::kTileRows;
    return tiles[((tile * n_pairs + col / 2) * kernels::kTileRows + row % kernels::kTileRows) * 2 + col % 2];
  };
  for (size_t row = weight.d_out; row < padded_rows; ++row) {
    for (size_t col = 0; col < 2 * n_pairs; ++col) at(row, col) = {};
  }
  if (weight.d_in % 2 == 0) return;
  for (size_t row = 0; row < padded_rows; ++row) at(row, weight.d_in) = {};
}

Buffer<float> Ones(size_t n) {
  Buffer<float> values(n);
  std::fill_n(values.data(), n, 1.0F);
  return values;
}

bool IsTied(const ModelConfig& config) { return config.tied_head; }

// The seven matrices of a layer among `slots`, in the order of LinearSlot.
std::vector<Slot> MatrixSlots(const ModelConfig& config) {
  std::vector<Slot> matrices;
  for (Slot& slot : ListSlots(config, IsTied(config))) {
    if (slot.kind == SlotKind::kMatrix) matrices.push_back(std::move(slot));
  }
  DF_CHECK(matrices.size() == config.n_layers * kLinearSlots);
  return matrices;
}

}  // namespace

kernels::PackedWeight SyntheticWeight(KernelContext& context, size_t d_out, size_t d_in, uint64_t seed) {
  static const std::array<Bf16, 256> kValues = WeightValues();
  kernels::PackedWeight weight = {.dtype = DType::kBf16, .d_out = d_out, .d_in = d_in, .tiles = {}};
  weight.tiles = Buffer<uint8_t>(weight.n_tiles() * weight.tile_bytes());
  auto* tiles = reinterpret_cast<Bf16*>(weight.tiles.data());
  constexpr size_t kPerDraw = 8;  // a tile holds a multiple of 64 elements
  context.pool.ParallelFor(weight.tiles.size() / sizeof(Bf16), 4096, [&](size_t begin, size_t end, size_t) {
    for (size_t i = begin; i < end; i += kPerDraw) {
      const uint64_t draw = RandomBits(seed, i / kPerDraw);
      for (size_t j = 0; j < kPerDraw; ++j) tiles[i + j] = kValues[draw >> (8 * j) & 0xFF];
    }
  });
  ZeroPadding(weight, tiles);
  return weight;
}

const LinearDelta& SyntheticDelta::Make(size_t d_out, size_t d_in, uint64_t seed) {
  const size_t row_bytes = SignRowBytes(d_in);
  const size_t n_bytes = d_out * row_bytes;
  bits_.resize((n_bytes + 7) / 8);
  for (size_t i = 0; i < bits_.size(); ++i) bits_[i] = RandomBits(seed, i);
  auto* bytes = reinterpret_cast<uint8_t*>(bits_.data());
  if (d_in % 8 != 0) {
    for (size_t row = 1; row <= d_out; ++row) bytes[row * row_bytes - 1] &= static_cast<uint8_t>((1 << d_in % 8) - 1);
  }
  scales_.resize(d_out);
  for (size_t i = 0; i < d_out; ++i) {
    scales_[i] = 0.1F * kSyntheticBound * (0.5F + static_cast<float>(RandomUnit(seed, i)));
  }
  delta_ = {.d_out = d_out, .d_in = d_in};
  SignPlane plane = {.bits = {bytes, n_bytes}};
  plane.row_scale = TensorView{DType::kF32, Shape{d_out}, AsBytes(std::span<const float>(scales_))};
  delta_.planes.push_back(plane);
  return delta_;
}

kernels::PackedDelta SyntheticAdapter(KernelContext& context, const AdapterShape& shape, uint64_t seed) {
  static const std::array<Bf16, 256> kValues = WeightValues();
  const auto random = [&](size_t n, uint64_t stream) {
    std::vector<Bf16> values(n);
    for (size_t i = 0; i < n; ++i)
      values[i] = kValues[RandomBits(RandomBits(seed, stream), i / 8) >> (i % 8 * 8) & 0xFF];
    return values;
  };
  const std::vector<Bf16> a = random(shape.rank * shape.d_in, 1), b = random(shape.d_out * shape.rank, 2);
  LinearDelta delta = {.d_out = shape.d_out, .d_in = shape.d_in};
  delta.low_rank.push_back({.a = {DType::kBf16, Shape{shape.rank, shape.d_in}, AsBytes(std::span<const Bf16>(a))},
                            .b = {DType::kBf16, Shape{shape.d_out, shape.rank}, AsBytes(std::span<const Bf16>(b))}});
  return kernels::PackDelta(context, delta);
}

std::shared_ptr<const BaseWeights> SyntheticBase(KernelContext& context, const ModelConfig& config, uint64_t seed) {
  auto base = std::make_shared<BaseWeights>();
  base->config = config;
  base->tied = IsTied(config);
  base->fingerprint = "synthetic";
  base->rope = ComputeRopeFrequencies(config.rope, config.head_dim);
  const auto matrix = [&](size_t d_out, size_t d_in) {
    kernels::PackedWeight weight = SyntheticWeight(context, d_out, d_in, seed++);
    base->bytes += weight.bytes();
    return weight;
  };
  base->embedding.weight = matrix(config.vocab, config.d_model);
  if (!base->tied) base->head.weight = matrix(config.vocab, config.d_model);
  base->layers.resize(config.n_layers);
  const std::vector<Slot> slots = MatrixSlots(config);
  for (size_t i = 0; i < slots.size(); ++i) {
    base->layers[i / kLinearSlots].linear[i % kLinearSlots].weight = matrix(slots[i].d_out, slots[i].d_in);
  }
  for (LayerWeights& layer : base->layers) {
    const std::array<size_t, kNormSlots> sizes = {config.d_model, config.d_model, config.qk_norm ? config.head_dim : 0,
                                                  config.qk_norm ? config.head_dim : 0};
    for (size_t i = 0; i < kNormSlots; ++i) layer.norm[i] = Ones(sizes[i]);
  }
  base->final_norm = Ones(config.d_model);
  return base;
}

std::shared_ptr<const VariantWeights> SyntheticVariant(KernelContext& context, const BaseWeights& base, uint64_t seed) {
  auto variant = std::make_shared<VariantWeights>();
  variant->config = base.config;
  variant->digest = "synthetic-" + std::to_string(seed);
  variant->embedding = kernels::UnchangedDelta(base.embedding.weight);
  variant->head_on_embedding = base.tied;
  if (!base.tied) variant->head = kernels::UnchangedDelta(base.head.weight);
  variant->layers.resize(base.config.n_layers);
  SyntheticDelta delta;
  for (size_t layer = 0; layer < variant->layers.size(); ++layer) {
    for (size_t i = 0; i < kLinearSlots; ++i) {
      const kernels::PackedWeight& weight = base.layers[layer].linear[i].weight;
      const uint64_t matrix_seed = RandomBits(seed, layer * kLinearSlots + i);
      variant->layers[layer].linear[i] =
          kernels::PackDelta(context, delta.Make(weight.d_out, weight.d_in, matrix_seed));
      variant->bytes += variant->layers[layer].linear[i].bytes();
    }
  }
  return variant;
}

uint64_t SyntheticBaseBytes(const ModelConfig& config) {
  uint64_t bytes = 0;
  for (const Slot& slot : ListSlots(config, IsTied(config))) bytes += uint64_t{slot.d_out} * slot.d_in * sizeof(Bf16);
  return bytes;
}

uint64_t SyntheticVariantBytes(const ModelConfig& config) {
  uint64_t bytes = 0;
  for (const Slot& slot : MatrixSlots(config)) bytes += slot.d_out * (SignRowBytes(slot.d_in) + sizeof(float));
  return bytes;
}

}  // namespace df::tools
