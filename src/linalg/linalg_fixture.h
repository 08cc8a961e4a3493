// Random matrices with a known spectrum for the tests of linalg/, made without it.
#ifndef DELTAFOLD_LINALG_LINALG_FIXTURE_H_
#define DELTAFOLD_LINALG_LINALG_FIXTURE_H_

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/rng.h"
#include "tensor/mat.h"

namespace df::linalg {

inline Mat<float> RandomMatrix(size_t rows, size_t cols, uint64_t seed) {
  Mat<float> a(rows, cols);
  for (size_t i = 0; i < rows * cols; ++i) a.Row(0)[i] = static_cast<float>(2 * RandomUnit(seed, i) - 1);
  return a;
}

// k orthonormal rows of length n by Gram and Schmidt in f64, twice for each row.
inline Mat<double> OrthonormalRows(size_t k, size_t n, uint64_t seed) {
  Mat<double> q(k, n);
  for (size_t row = 0; row < k; ++row) {
    for (size_t j = 0; j < n; ++j) q.Row(row)[j] = RandomUnit(seed, row * n + j) - 0.5;
    for (size_t pass = 0; pass < 2; ++pass) {
      for (size_t other = 0; other <= row; ++other) {  // itself last: to length 1
        double inner = 0;
        for (size_t j = 0; j < n; ++j) inner += q.Row(row)[j] * q.Row(other)[j];
        for (size_t j = 0; j < n; ++j) {
          if (other == row) {
            q.Row(row)[j] /= std::sqrt(inner);
          } else {
            q.Row(row)[j] -= inner * q.Row(other)[j];
          }
        }
        if (other == row) break;
      }
    }
  }
  return q;
}

// A matrix [rows, cols] whose singular values are `spectrum`, then zeros.
inline Mat<float> WithSpectrum(size_t rows, size_t cols, const std::vector<double>& spectrum, uint64_t seed) {
  const Mat<double> u = OrthonormalRows(spectrum.size(), rows, seed),
                    v = OrthonormalRows(spectrum.size(), cols, seed + 1);
  Mat<float> a(rows, cols);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < cols; ++j) {
      double sum = 0;
      for (size_t k = 0; k < spectrum.size(); ++k) sum += u.Row(k)[i] * spectrum[k] * v.Row(k)[j];
      a.Row(i)[j] = static_cast<float>(sum);
    }
  }
  return a;
}

inline std::vector<double> Geometric(size_t n, double ratio) {
  std::vector<double> spectrum(n, 1.0);
  for (size_t k = 1; k < n; ++k) spectrum[k] = spectrum[k - 1] * ratio;
  return spectrum;
}

}  // namespace df::linalg

#endif  // DELTAFOLD_LINALG_LINALG_FIXTURE_H_
