#include "merge/linear.h"

#include <cmath>

#include "merge/elementwise.h"

namespace df::merge {

Result<Report> MergeLinear(ThreadPool& pool, const TensorGroup& group, const Settings& settings, const Sink& sink) {
  double total = 0;
  for (const double weight : settings.weights) total += weight;
  if (settings.normalize && std::fabs(total) < 1e-8) {
    return InvalidArgument("tensor " + group.name + ": the weights of linear sum to " + std::to_string(total) +
                           " and cannot be normalised: give others, or normalize: false");
  }
  const TensorGroup models{.name = group.name, .models = group.models, .model_names = group.model_names};
  Settings mean = settings;
  mean.lambda = 1;
  return MergeElementwise(pool, models, {.coefficients = TaskCoefficients(mean)}, sink);
}

}  // namespace df::merge
