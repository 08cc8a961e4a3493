#include "merge/monosoup.h"

#include <algorithm>
#include <cmath>

#include "merge/elementwise.h"
#include "merge/truncation.h"

namespace df::merge {
namespace {

constexpr double kUnchanged = 1e-6;  // |D| / |W_b| below which there is nothing to edit

double SquaresOf(ThreadPool& pool, const TensorView& tensor) {
  Buffer<double> of_block((tensor.elements() + kBlock - 1) / kBlock);
  ForEachBlock(pool, tensor.elements(), [&](size_t first, size_t size) {
    std::vector<float> values(size);
    ReadElements(tensor, first, values);
    of_block[first / kBlock] = element_ops::Squares(values);
  });
  double sum = 0;
  for (const double block : of_block.span()) sum += block;
  return sum;
}

Report::Edit EditOf(const SpectrumReport& spectrum) {
  Report::Edit edit;
  if (spectrum.largest > 0) edit.rho = std::pow(spectrum.first_cut / spectrum.largest, 2);
  const double cut = std::sqrt(std::max(0.0, 1 - spectrum.energy));
  edit.low = std::clamp(edit.rho + (1 - edit.rho) * cut, 0.0, 1.0);
  edit.high = 1 - edit.low;
  return edit;
}

}  // namespace

Result<Report> MergeMonosoup(ThreadPool& pool, const TensorGroup& group, const Settings& settings, const Sink& sink) {
  if (!IsMatrix(group.models[0])) return MergeMean(pool, group, sink);
  const std::vector<double> shares(group.models.size(), 1.0 / static_cast<double>(group.models.size()));
  DF_ASSIGN_OR_RETURN(HeldDifference held, HoldDifference(pool, group, shares));
  const double base = SquaresOf(pool, *group.base);
  if (std::sqrt(held.squares) < kUnchanged * std::sqrt(base) || held.squares == 0) return MergeMean(pool, group, sink);
  const CutRule rule{.effective_rank = settings.effective_rank, .energy = settings.energy};
  DF_ASSIGN_OR_RETURN(Truncation cut, Truncate(pool, held.d.view(), held.squares, rule));
  held.d = {};
  const Report::Edit edit = EditOf(cut.spectrum);
  Report report{
      .way = cut.spectrum.way, .task_squares = std::move(held.task_squares), .spectra = {cut.spectrum}, .edit = edit};
  // W_b + low D + (high - low) D_k, or W_b + high D + (low - high) (D - D_k).
  std::vector<double> coefficients(shares);
  for (double& coefficient : coefficients) coefficient *= cut.is_rest ? edit.high : edit.low;
  Scale(cut.is_rest ? edit.low - edit.high : edit.high - edit.low, cut.left);
  const LowRankTerm term{cut.left.view(), cut.right.view()};
  DF_RETURN_IF_ERROR(WriteSum(pool, group, coefficients, {&term, 1}, sink, report));
  return report;
}

}  // namespace df::merge
