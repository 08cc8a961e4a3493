// Made-up adapters for the tests of the pool, and their matrices in f64.
#ifndef DELTAFOLD_MERGE_ADAPTER_FIXTURE_H_
#define DELTAFOLD_MERGE_ADAPTER_FIXTURE_H_

#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/rng.h"
#include "merge/adapter_factors.h"
#include "merge/adapter_writer.h"
#include "testing/status_matchers.h"

namespace df::testing {

inline constexpr const char* kQuery = "model.layers.0.self_attn.q_proj";
inline constexpr const char* kDown = "model.layers.1.mlp.down_proj";

struct MadeModule {
  std::string path = kQuery;
  size_t d_out = 24, d_in = 20, rank = 3;
};

inline Mat<float> RandomMat(size_t rows, size_t cols, uint64_t seed) {
  Mat<float> values(rows, cols);
  for (size_t i = 0; i < rows * cols; ++i) {
    values.view().data[i] = static_cast<float>(2 * RandomUnit(seed, i) - 1);
  }
  return values;
}

// `common` > 0: that share of the factors is the same for every seed.
inline AdapterFactors MakeFactors(const std::vector<MadeModule>& modules, uint64_t seed, float common = 0) {
  AdapterFactors factors;
  for (const MadeModule& module : modules) {
    FactorPair& pair = factors.modules[module.path];
    const uint64_t place = std::hash<std::string>()(module.path);
    pair.a = RandomMat(module.rank, module.d_in, place ^ (2 * seed + 1));
    pair.b = RandomMat(module.d_out, module.rank, place ^ (2 * seed + 2));
    const Mat<float> a = RandomMat(module.rank, module.d_in, place), b = RandomMat(module.d_out, module.rank, ~place);
    for (size_t i = 0; i < module.rank * module.d_in; ++i) {
      pair.a.view().data[i] = common * a.view().data[i] + (1 - common) * pair.a.view().data[i];
    }
    for (size_t i = 0; i < module.rank * module.d_out; ++i) {
      pair.b.view().data[i] = common * b.view().data[i] + (1 - common) * pair.b.view().data[i];
    }
    pair.squared_norm = SquaredNormOf(pair);
  }
  return factors;
}

inline std::string WriteMade(const AdapterFactors& factors, const std::string& directory) {
  std::filesystem::create_directories(directory);
  DF_EXPECT_OK(WriteAdapter(factors, "made", directory));
  return directory;
}

inline AdapterFactors ReadMade(const std::string& directory) {
  ThreadPool pool(1);
  return ValueOrDie(ReadFactors(pool, *ValueOrDie(PeftAdapter::Open(directory))));
}

// delta-W [d_out, d_in], summed in f64.
inline Mat<double> Dense(const FactorPair& pair) {
  Mat<double> dense(pair.d_out(), pair.d_in());
  for (size_t row = 0; row < pair.d_out(); ++row) {
    for (size_t k = 0; k < pair.rank(); ++k) {
      for (size_t col = 0; col < pair.d_in(); ++col) {
        dense.Row(row)[col] += double{pair.b.Row(row)[k]} * double{pair.a.Row(k)[col]};
      }
    }
  }
  return dense;
}

// delta-W of every module, with zeros in place of those that `like` has and `factors` lack.
inline std::map<std::string, Mat<double>> DenseOf(const AdapterFactors& factors, const AdapterFactors& like) {
  std::map<std::string, Mat<double>> dense;
  for (const auto& [path, pair] : like.modules) dense[path] = Mat<double>(pair.d_out(), pair.d_in());
  for (const auto& [path, pair] : factors.modules) dense[path] = Dense(pair);
  return dense;
}

// |sum_i weights_i adapters_i| over all modules.
inline double DistanceOf(const std::vector<const AdapterFactors*>& adapters, const std::vector<double>& weights) {
  std::map<std::string, Mat<double>> sum;
  for (size_t i = 0; i < adapters.size(); ++i) {
    for (const auto& [path, pair] : adapters[i]->modules) {
      const Mat<double> dense = Dense(pair);
      auto [at, is_first] = sum.try_emplace(path, dense.rows(), dense.cols());
      for (size_t j = 0; j < dense.rows() * dense.cols(); ++j) {
        at->second.view().data[j] += weights[i] * dense.view().data[j];
      }
    }
  }
  double squares = 0;
  for (const auto& [path, dense] : sum) {
    for (size_t j = 0; j < dense.rows() * dense.cols(); ++j) squares += dense.view().data[j] * dense.view().data[j];
  }
  return std::sqrt(squares);
}

}  // namespace df::testing

#endif  // DELTAFOLD_MERGE_ADAPTER_FIXTURE_H_
