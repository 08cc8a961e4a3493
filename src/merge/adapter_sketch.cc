#include "merge/adapter_sketch.h"

#include "base/rng.h"
#include "linalg/products.h"
#include "merge/each_module.h"

namespace df {
namespace {

// FNV-1a: a path's number is the same on every machine, and part of the stored form.
uint64_t SeedOf(std::string_view path, uint64_t side) {
  uint64_t hash = 0xCBF29CE484222325u + side;
  for (const char c : path) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3u;
  return hash;
}

struct Place {
  size_t bucket;
  float sign;
};
Place PlaceOf(uint64_t seed, size_t index) {
  const uint64_t bits = RandomBits(seed, index);
  return {.bucket = bits % kSketchSide, .sign = (bits >> 32 & 1) != 0 ? 1.0F : -1.0F};
}

// `sketch` [64, 64] of one module.
void SketchModule(const std::string& path, const FactorPair& pair, MatView<float> sketch) {
  const size_t rank = pair.rank();
  Mat<float> left(kSketchSide, rank), right(rank, kSketchSide);
  const uint64_t row_seed = SeedOf(path, 1), col_seed = SeedOf(path, 2);
  for (size_t row = 0; row < pair.d_out(); ++row) {
    const auto [bucket, sign] = PlaceOf(row_seed, row);
    const float* from = pair.b.Row(row);
    float* to = left.Row(bucket);
    for (size_t i = 0; i < rank; ++i) to[i] += sign * from[i];
  }
  std::vector<Place> places(pair.d_in());
  for (size_t col = 0; col < places.size(); ++col) places[col] = PlaceOf(col_seed, col);
  for (size_t i = 0; i < rank; ++i) {
    const float* from = pair.a.Row(i);
    float* to = right.Row(i);
    for (size_t col = 0; col < places.size(); ++col) to[places[col].bucket] += places[col].sign * from[col];
  }
  linalg::Multiply(left.view(), right.view(), sketch);
}

}  // namespace

AdapterSketch SketchOf(ThreadPool& pool, const AdapterFactors& factors) {
  std::vector<std::pair<const std::string*, const FactorPair*>> modules;
  for (const auto& [path, pair] : factors.modules) modules.emplace_back(&path, &pair);
  std::vector<Mat<float>> sketches(modules.size());
  const Status done = EachModule(pool, modules.size(), [&](size_t i) {
    sketches[i] = Mat<float>(kSketchSide, kSketchSide);
    SketchModule(*modules[i].first, *modules[i].second, sketches[i].view());
    return Status::Ok();
  });
  DF_CHECK(done.ok());
  AdapterSketch sum(kSketchElements);
  for (const Mat<float>& sketch : sketches) {
    for (size_t i = 0; i < kSketchElements; ++i) sum[i] += sketch.view().data[i];
  }
  return sum;
}

double InnerProduct(const AdapterSketch& first, const AdapterSketch& second) {
  double sum = 0;
  for (size_t i = 0; i < kSketchElements; ++i) sum += double{first[i]} * double{second[i]};
  return sum;
}

}  // namespace df
