#include "tools/row_set.h"

#include <fnmatch.h>

#include <algorithm>

#include "tools/statistics.h"

namespace df::tools {

bool Matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

bool WantsAny(const RowSelection& selection, std::initializer_list<std::string> patterns) {
  const auto wanted = [&](const std::string& name) {
    return std::any_of(patterns.begin(), patterns.end(), [&](const auto& pattern) { return Matches(pattern, name); });
  };
  return selection.empty() || std::any_of(selection.begin(), selection.end(), wanted);
}

RowResult RowSet::ResultOf(const Row& row) const {
  RowResult result = {.name = row.name,
                      .shape = shape_,
                      .n_threads = n_threads_,
                      .samples = {},
                      .read_share = {},
                      .from_cache = row.from_cache,
                      .by_bf16_dots = row.by_bf16_dots,
                      .missing = row.missing};
  if (!row.missing.empty()) return result;
  std::vector<double> seconds, read_shares;
  for (size_t round = 0; round < rounds_.n_rounds(); ++round) {
    result.samples.push_back(row.sample([&](Operation operation) { return rounds_.Seconds(operation, round); }));
    seconds.push_back(rounds_.Seconds(row.subject, round));
    if (!IsBoundByReading(row)) continue;
    const double read_s = rounds_.Seconds(reading_->operation, round) / reading_->bytes * row.cost.bytes;
    read_shares.push_back(read_s * static_cast<double>(row.n_calls) / seconds.back());
  }
  const double median = Median(seconds) / static_cast<double>(row.n_calls);
  result.bytes_per_second = row.cost.bytes / median;
  result.flops_per_second = row.cost.flops / median;
  if (!read_shares.empty()) result.read_share = Median(read_shares);
  return result;
}

std::vector<RowResult> RowSet::Measure(const RowSelection& selection, size_t n_rounds) {
  std::vector<bool> used(rounds_.n_operations(), false);
  bool any = false;
  for (const Row& row : rows_) {
    if (!Wants(selection, row.name) || !row.missing.empty()) continue;
    used[row.subject] = any = true;
    for (const Operation other : row.others) used[other] = true;
    if (IsBoundByReading(row)) used[reading_->operation] = true;
  }
  std::vector<RowResult> results;
  if (any) rounds_.Run(n_rounds, used);
  for (const Row& row : rows_) {
    if (Wants(selection, row.name)) results.push_back(ResultOf(row));
  }
  return results;
}

}  // namespace df::tools
