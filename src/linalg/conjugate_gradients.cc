#include "linalg/conjugate_gradients.h"

#include <cmath>
#include <vector>

#include "base/check.h"

namespace df::linalg {
namespace {

constexpr size_t kLanes = 8;

double Dot(const float* a, const double* x, size_t n) {
  double lanes[kLanes] = {};
  size_t j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    for (size_t k = 0; k < kLanes; ++k) lanes[k] += double{a[j + k]} * x[j + k];
  }
  for (size_t k = 0; j + k < n; ++k) lanes[k] += double{a[j + k]} * x[j + k];
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

double Dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// y = A x.
void Multiply(ThreadPool& pool, MatView<const float> a, std::span<const double> x, std::span<double> y) {
  pool.ParallelFor(a.rows, GrainFor(a.cols * sizeof(float)), [&](size_t begin, size_t end, size_t) {
    for (size_t row = begin; row < end; ++row) y[row] = Dot(a.Row(row), x.data(), a.cols);
  });
}

}  // namespace

size_t SolveByConjugateGradients(ThreadPool& pool, MatView<const float> a, std::span<const double> b,
                                 std::span<double> x, const ConjugateGradientsOptions& options) {
  const size_t n = a.rows;
  DF_CHECK(a.cols == n && b.size() == n && x.size() == n);
  std::vector<double> inverse(n), rest(n), turned(n), direction(n), product(n);
  for (size_t i = 0; i < n; ++i) inverse[i] = a.Row(i)[i] > 0 ? 1.0 / double{a.Row(i)[i]} : 0.0;
  const double target = options.tolerance * std::sqrt(Dot(b, b));
  Multiply(pool, a, x, product);
  for (size_t i = 0; i < n; ++i) {
    rest[i] = b[i] - product[i];
    direction[i] = turned[i] = inverse[i] * rest[i];
  }
  double energy = Dot(rest, turned);
  for (size_t step = 0; step < options.max_steps; ++step) {
    if (!(energy > 0) || std::sqrt(Dot(rest, rest)) <= target) return step;
    Multiply(pool, a, direction, product);
    const double curvature = Dot(direction, product);
    if (!(curvature > 0)) return step;  // rounding alone is left
    const double length = energy / curvature;
    for (size_t i = 0; i < n; ++i) {
      x[i] += length * direction[i];
      rest[i] -= length * product[i];
      turned[i] = inverse[i] * rest[i];
    }
    const double next = Dot(rest, turned);
    for (size_t i = 0; i < n; ++i) direction[i] = turned[i] + next / energy * direction[i];
    energy = next;
  }
  return options.max_steps;
}

}  // namespace df::linalg
