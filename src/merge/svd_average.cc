#include "merge/svd_average.h"

#include "merge/truncation.h"

namespace df::merge {

Result<Report> MergeSvdAverage(ThreadPool& pool, const TensorGroup& group, const Settings& settings, const Sink& sink) {
  if ((settings.rank > 0) == (settings.energy > 0)) {
    return InvalidArgument("tensor " + group.name + ": svd_average takes a rank or an energy, " +
                           (settings.rank > 0 ? "not both" : "and neither was given"));
  }
  if (!IsMatrix(group.models[0])) return MergeMean(pool, group, sink);
  const size_t n_models = group.models.size();
  const double share = 1.0 / static_cast<double>(n_models);
  Report report{.way = Way::kRandomised, .task_squares = std::vector<double>(n_models)};
  std::vector<Truncation> cuts;
  std::vector<LowRankTerm> terms;
  std::vector<double> coefficients(n_models);
  for (size_t i = 0; i < n_models; ++i) {
    std::vector<double> only(n_models);
    only[i] = 1;
    DF_ASSIGN_OR_RETURN(const HeldDifference held, HoldDifference(pool, group, only));
    DF_ASSIGN_OR_RETURN(Truncation cut, Truncate(pool, held.d.view(), held.squares,
                                                 {.rank = settings.rank, .energy = settings.energy}));
    report.task_squares[i] = held.task_squares[i];
    report.spectra.push_back(cut.spectrum);
    if (cut.spectrum.way == Way::kGram) report.way = Way::kGram;
    coefficients[i] = cut.is_rest ? share : 0;
    Scale(cut.is_rest ? -share : share, cut.left);
    cuts.push_back(std::move(cut));
  }
  for (const Truncation& cut : cuts) terms.push_back({cut.left.view(), cut.right.view()});
  DF_RETURN_IF_ERROR(WriteSum(pool, group, coefficients, terms, sink, report));
  return report;
}

}  // namespace df::merge
