// The solution of a symmetric positive definite system by conjugate gradients with the diagonal as preconditioner
// (Hestenes and Stiefel, 1952). Every step lowers x^T A x / 2 - b^T x, so that a run cut short is an improvement still.
#ifndef DELTAFOLD_LINALG_CONJUGATE_GRADIENTS_H_
#define DELTAFOLD_LINALG_CONJUGATE_GRADIENTS_H_

#include <span>

#include "base/thread_pool.h"
#include "tensor/mat.h"

namespace df::linalg {

struct ConjugateGradientsOptions {
  size_t max_steps = 200;
  double tolerance = 1e-6;  // of |b - A x| / |b|
};

// Improves x [n], which holds a first guess, towards A x = b. a [n, n] f32, read whole; b [n]. Entries of x whose
// diagonal is not positive stay as they are. Vectors are f64, sums in f64; some n^2 * 2 FLOPs a step on all threads.
// The result does not depend on `pool`. Returns the number of steps.
size_t SolveByConjugateGradients(ThreadPool& pool, MatView<const float> a, std::span<const double> b,
                                 std::span<double> x, const ConjugateGradientsOptions& options = {});

}  // namespace df::linalg

#endif  // DELTAFOLD_LINALG_CONJUGATE_GRADIENTS_H_
