// Tensors in memory and merges of them, for the tests of merge/.
#ifndef DELTAFOLD_MERGE_MERGE_FIXTURE_H_
#define DELTAFOLD_MERGE_MERGE_FIXTURE_H_

#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "codec/row_ops.h"
#include "merge/method.h"
#include "testing/status_matchers.h"

namespace df::merge {

// Elements stored as `dtype` at an odd address, as a mapped file may have them.
class Stored {
 public:
  Stored(Shape shape, const std::vector<float>& values, DType dtype = DType::kF32)
      : bytes_(1 + values.size() * DTypeBytes(dtype)), shape_(shape), dtype_(dtype) {
    row_ops::Narrow(values, dtype, bytes_.data() + 1);
  }
  TensorView view() const { return {dtype_, shape_, {bytes_.data() + 1, bytes_.size() - 1}}; }
  std::vector<float> values() const {
    std::vector<float> values(view().elements());
    ReadFloats(view(), 0, values);
    return values;
  }

 private:
  std::vector<uint8_t> bytes_;
  Shape shape_;
  DType dtype_;
};

// Uniform in [-scale, scale).
inline std::vector<float> RandomValues(size_t n, uint64_t seed, double scale = 1) {
  std::vector<float> values(n);
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>(scale * (2 * RandomUnit(seed, i) - 1));
  return values;
}

inline std::vector<float> Sum(std::vector<float> a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

inline double Norm(const std::vector<float>& a) {
  double sum = 0;
  for (const float x : a) sum += double{x} * double{x};
  return std::sqrt(sum);
}

inline double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - double{b[i]}) * (double{a[i]} - double{b[i]});
  return std::sqrt(sum);
}

inline double LargestDistance(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double distance = std::fabs(double{a[i]} - double{b[i]});
    largest = distance <= largest ? largest : distance;  // a NaN stays
  }
  return largest;
}

struct Merged {
  std::vector<float> values;
  Report report;
};

using Parameters = std::vector<std::pair<std::string, std::vector<double>>>;  // one value, or one for each model

inline Result<Merged> TryMerge(std::string_view name, const TensorGroup& group, const Parameters& parameters = {},
                               size_t n_threads = 2) {
  const Method& method = *FindMethodOrNull(name);
  Settings settings = DefaultSettings(method, group.models.size());
  for (const auto& [key, values] : parameters) {
    for (size_t i = 0; i < values.size(); ++i) {
      DF_RETURN_IF_ERROR(
          SetParameter(method, key, values.size() == 1 ? std::nullopt : std::optional(i), values[i], settings));
    }
  }
  ThreadPool pool(n_threads);
  Merged merged;
  merged.values.assign(group.models.empty() ? 0 : group.models[0].elements(), NAN);
  DF_ASSIGN_OR_RETURN(merged.report,
                      Merge(pool, method, group, settings, [&](size_t first, std::span<const float> values) {
                        std::copy(values.begin(), values.end(), merged.values.begin() + static_cast<ptrdiff_t>(first));
                      }));
  return merged;
}

inline Merged MergeOrDie(std::string_view name, const TensorGroup& group, const Parameters& parameters = {},
                         size_t n_threads = 2) {
  return testing::ValueOrDie(TryMerge(name, group, parameters, n_threads));
}

}  // namespace df::merge

#endif  // DELTAFOLD_MERGE_MERGE_FIXTURE_H_
