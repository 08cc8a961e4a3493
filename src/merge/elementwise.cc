#include "merge/elementwise.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/populate_pages.h"
#include "codec/row_ops.h"

namespace df::merge {
namespace {

// Elements in work at once: k + 2 runs of 8 KiB, for three models about what the first cache holds.
constexpr size_t kRun = 2048;

// A matrix of one row over elements [first, first + n) of a tensor.
TensorView Part(const TensorView& tensor, size_t first, size_t n) {
  const size_t element_bytes = DTypeBytes(tensor.dtype);
  return {tensor.dtype, Shape{1, n}, tensor.bytes.subspan(first * element_bytes, n * element_bytes)};
}

Status FindNonFiniteIn(const TensorView& tensor, const std::string& name, const std::string& whose) {
  std::vector<float> block(kBlock);
  for (size_t first = 0; first < tensor.elements(); first += kBlock) {
    const std::span<float> values = std::span(block).first(std::min(kBlock, tensor.elements() - first));
    ReadElements(tensor, first, values);
    const auto bad = std::ranges::find_if(values, [](float x) { return !std::isfinite(x); });
    if (bad == values.end()) continue;
    return Corrupt("tensor " + name + " of " + whose + " holds " + (std::isnan(*bad) ? "NaN" : "an infinity") +
                   " at element " + std::to_string(first + static_cast<size_t>(bad - values.begin())) + " of " +
                   ToString(tensor.shape) + ": it cannot be merged");
  }
  return Status::Ok();
}

// Bytes of each input whose pages are mapped at once: a fault each 64 KiB would take longer than it takes to read them.
constexpr size_t kMappedBytes = size_t{2} << 20;

// Maps the pages of all inputs from the block `block` on, where that is a part's first or begins new ones; `end` is the
// part's.
void MapPages(const TensorGroup& group, size_t block, size_t begin, size_t end) {
  const auto map = [&](const TensorView& tensor) {
    const size_t block_bytes = kBlock * DTypeBytes(tensor.dtype), n_blocks = kMappedBytes / block_bytes;
    if ((block - begin) % n_blocks != 0) return;
    const size_t first = block * block_bytes, last = std::min(block + n_blocks, end) * block_bytes;
    PopulatePages(tensor.bytes.subspan(first, std::min(last, tensor.bytes.size()) - first));
  };
  if (group.base) map(*group.base);
  for (const TensorView& model : group.models) map(model);
}

// The one type of all inputs where element_ops::StoredSum can do the merge.
std::optional<DType> StoredTypeOrNone(const TensorGroup& group, const ElementwiseRule& rule) {
  const DType dtype = group.models[0].dtype;
  if (rule.prune || rule.has_consensus || group.models.size() > element_ops::kMaxStored) return std::nullopt;
  if (group.base && group.base->dtype != dtype) return std::nullopt;
  for (const TensorView& model : group.models) {
    if (model.dtype != dtype) return std::nullopt;
  }
  return dtype;
}

// As MergeBlock, of what StoredTypeOrNone names.
void MergeStoredBlock(const TensorGroup& group, DType dtype, std::span<const double> coefficients, size_t first,
                      std::span<float> out, std::span<double> sums) {
  const size_t n_models = group.models.size(), element_bytes = DTypeBytes(dtype);
  std::array<const uint8_t*, element_ops::kMaxStored> models = {};
  for (size_t begin = 0; begin < out.size(); begin += kRun) {
    const size_t at = (first + begin) * element_bytes;
    for (size_t i = 0; i < n_models; ++i) models[i] = group.models[i].bytes.data() + at;
    const element_ops::StoredRuns runs{dtype, std::span(models).first(n_models),
                                       group.base ? group.base->bytes.data() + at : nullptr};
    const std::span<float> to = out.subspan(begin, std::min(kRun, out.size() - begin));
    sums[n_models] += element_ops::StoredSum(runs, coefficients, sums.first(n_models), to);
  }
}

// Memory of one thread: the runs in work and the block that they make.
struct Workspace {
  explicit Workspace(size_t n_models) : differences(n_models, kRun), base(kRun), out(kBlock), runs(n_models) {
    for (size_t i = 0; i < n_models; ++i) runs[i] = differences.Row(i);
  }
  Mat<float> differences;
  Buffer<float> base, out;
  std::vector<const float*> runs;
};

// Sums of one block: [0, k) of the differences' squares, [k] of the result's.
void MergeBlock(const TensorGroup& group, const ElementwiseRule& rule, size_t first, std::span<float> out,
                Workspace& memory, std::span<double> sums) {
  const size_t n_models = group.models.size();
  for (size_t begin = 0; begin < out.size(); begin += kRun) {
    const size_t at = first + begin, n = std::min(kRun, out.size() - begin);
    for (size_t i = 0; i < n_models; ++i) {
      const std::span<float> difference = memory.differences.view().RowSpan(i).first(n);
      ReadDifference(group, i, at, difference);
      sums[i] += element_ops::Squares(difference);
      if (rule.prune) rule.prune(i, at, difference);
    }
    if (group.base) ReadElements(*group.base, at, memory.base.span().first(n));
    const element_ops::Runs runs{memory.runs, group.base ? memory.base.data() : nullptr};
    const std::span<float> to = out.subspan(begin, n);
    sums[n_models] += rule.has_consensus
                          ? element_ops::AgreeingSum(runs, {rule.coefficients, rule.divisors, rule.lambda}, to)
                          : element_ops::WeightedSum(runs, rule.coefficients, to);
  }
}

}  // namespace

void ForEachBlock(ThreadPool& pool, size_t n, const std::function<void(size_t first, size_t size)>& visit) {
  const size_t n_blocks = (n + kBlock - 1) / kBlock;
  pool.ParallelFor(n_blocks, GrainFor(kBlock * sizeof(float)), [&](size_t begin, size_t end, size_t) {
    for (size_t block = begin; block < end; ++block) visit(block * kBlock, std::min(kBlock, n - block * kBlock));
  });
}

void ReadElements(const TensorView& tensor, size_t first, std::span<float> out) {
  row_ops::ReadRow(Part(tensor, first, out.size()), 0, out);
}

void ReadDifference(const TensorGroup& group, size_t model, size_t first, std::span<float> out) {
  if (!group.base) return ReadElements(group.models[model], first, out);
  row_ops::Difference({{}, Part(*group.base, first, out.size()), Part(group.models[model], first, out.size())}, 0, out);
}

Status FindNonFinite(const TensorGroup& group) {
  if (group.base) DF_RETURN_IF_ERROR(FindNonFiniteIn(*group.base, group.name, group.BaseName()));
  for (size_t i = 0; i < group.models.size(); ++i) {
    DF_RETURN_IF_ERROR(FindNonFiniteIn(group.models[i], group.name, group.ModelName(i)));
  }
  return Corrupt("tensor " + group.name + ": all values are finite, but their merge overflows f32");
}

Result<Report> MergeElementwise(ThreadPool& pool, const TensorGroup& group, const ElementwiseRule& rule,
                                const Sink& sink) {
  const size_t n_models = group.models.size(), n = group.models[0].elements();
  DF_CHECK(rule.coefficients.size() == n_models);
  const size_t n_blocks = (n + kBlock - 1) / kBlock;
  const std::optional<DType> stored = StoredTypeOrNone(group, rule);
  Mat<double> sums(n_blocks, n_models + 1);
  pool.ParallelFor(n_blocks, GrainFor(kBlock * sizeof(float)), [&](size_t begin, size_t end, size_t) {
    Workspace memory(n_models);
    for (size_t block = begin; block < end; ++block) {
      const size_t first = block * kBlock;
      const std::span<float> out = memory.out.span().first(std::min(kBlock, n - first));
      MapPages(group, block, begin, end);
      if (stored) {
        MergeStoredBlock(group, *stored, rule.coefficients, first, out, sums.view().RowSpan(block));
      } else {
        MergeBlock(group, rule, first, out, memory, sums.view().RowSpan(block));
      }
      sink(first, out);
    }
  });
  Report report{.task_squares = std::vector<double>(n_models)};
  for (size_t block = 0; block < n_blocks; ++block) {
    for (size_t i = 0; i < n_models; ++i) report.task_squares[i] += sums.Row(block)[i];
    report.result_squares += sums.Row(block)[n_models];
  }
  if (!rule.has_consensus) report.coefficients = rule.coefficients;
  const bool is_finite = std::ranges::all_of(report.task_squares, [](double x) { return std::isfinite(x); });
  if (!is_finite || !std::isfinite(report.result_squares)) return FindNonFinite(group);
  return report;
}

Result<Report> CopyModel(ThreadPool& pool, const TensorGroup& group, const Sink& sink) {
  DF_CHECK(group.models.size() == 1);
  const size_t n = group.models[0].elements(), n_blocks = (n + kBlock - 1) / kBlock;
  Buffer<double> sums(n_blocks);
  ForEachBlock(pool, n, [&](size_t first, size_t size) {
    std::vector<float> values(size);
    ReadDifference(group, 0, first, values);
    sums[first / kBlock] = element_ops::Squares(values);
    ReadElements(group.models[0], first, values);
    sink(first, values);
  });
  Report report{.way = Way::kCopied, .task_squares = {0.0}};
  for (const double sum : sums.span()) report.task_squares[0] += sum;
  report.result_squares = report.task_squares[0];
  report.coefficients = {1.0};
  if (!std::isfinite(report.result_squares)) return FindNonFinite(group);
  return report;
}

std::vector<double> TaskCoefficients(const Settings& settings) {
  double total = 0;
  for (const double weight : settings.weights) total += weight;
  const double divisor = settings.normalize && std::fabs(total) >= 1e-8 ? total : 1.0;
  std::vector<double> coefficients(settings.weights);
  for (double& coefficient : coefficients) coefficient = coefficient * settings.lambda / divisor;
  return coefficients;
}

}  // namespace df::merge
