#include "merge/task_arithmetic.h"

#include "merge/elementwise.h"

namespace df::merge {

Result<Report> MergeTaskArithmetic(ThreadPool& pool, const TensorGroup& group, const Settings& settings,
                                   const Sink& sink) {
  return MergeElementwise(pool, group, {.coefficients = TaskCoefficients(settings)}, sink);
}

}  // namespace df::merge
