#include "tools/row_set.h"

#include "tools/statistics.h"

namespace df::tools {

RowResult RowSet::ResultOf(const Row& row) const {
  RowResult result = {.name = row.name, .shape = shape_, .n_threads = n_threads_, .samples = {}, .missing = {}};
  std::vector<double> seconds;
  for (size_t round = 0; round < rounds_.n_rounds(); ++round) {
    result.samples.push_back(row.sample([&](Operation operation) { return rounds_.Seconds(operation, round); }));
    seconds.push_back(rounds_.Seconds(row.subject, round));
  }
  const double median = Median(seconds);
  result.bytes_per_second = row.cost.bytes / median;
  result.flops_per_second = row.cost.flops / median;
  return result;
}

std::vector<RowResult> RowSet::Measure(const RowSelection& selection, size_t n_rounds) {
  std::vector<bool> used(rounds_.n_operations(), false);
  bool any = false;
  for (const Row& row : rows_) {
    if (!Wants(selection, row.name)) continue;
    used[row.subject] = any = true;
    for (const Operation other : row.others) used[other] = true;
  }
  std::vector<RowResult> results;
  if (!any) return results;
  rounds_.Run(n_rounds, used);
  for (const Row& row : rows_) {
    if (Wants(selection, row.name)) results.push_back(ResultOf(row));
  }
  return results;
}

}  // namespace df::tools
