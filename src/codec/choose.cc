#include "codec/choose.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <queue>

#include "base/json.h"

namespace df {
namespace {

struct UnitName {
  std::string_view suffix;
  Budget::Unit unit;
  double factor;
};
// Longer suffixes first: "Ki" ends with "i" only, "K" would match nothing else.
constexpr std::array<UnitName, 9> kUnits = {{{"bpw", Budget::Unit::kBitsPerWeight, 1},
                                             {"%", Budget::Unit::kShareOfModel, 0.01},
                                             {"Ki", Budget::Unit::kBytes, 1024.0},
                                             {"Mi", Budget::Unit::kBytes, 1024.0 * 1024},
                                             {"Gi", Budget::Unit::kBytes, 1024.0 * 1024 * 1024},
                                             {"K", Budget::Unit::kBytes, 1e3},
                                             {"M", Budget::Unit::kBytes, 1e6},
                                             {"G", Budget::Unit::kBytes, 1e9},
                                             {"", Budget::Unit::kBytes, 1}}};

// Places of the candidates on the lower convex hull of (bytes, loss), by ascending bytes: each step saves less loss a
// byte than the one before.
std::vector<size_t> LowerHull(const std::vector<Candidate>& candidates) {
  std::vector<size_t> order(candidates.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::sort(order, [&](size_t a, size_t b) {
    const Candidate &x = candidates[a], &y = candidates[b];
    if (x.bytes != y.bytes) return x.bytes < y.bytes;
    return x.loss != y.loss ? x.loss < y.loss : a < b;
  });
  const auto slope = [&](size_t from, size_t to) {
    const Candidate &x = candidates[from], &y = candidates[to];
    return (x.loss - y.loss) / static_cast<double>(y.bytes - x.bytes);
  };
  std::vector<size_t> hull;
  for (const size_t next : order) {
    if (!hull.empty() && candidates[next].loss >= candidates[hull.back()].loss) continue;
    while (hull.size() >= 2 && slope(hull[hull.size() - 2], hull.back()) <= slope(hull.back(), next)) hull.pop_back();
    hull.push_back(next);
  }
  return hull;
}

// Of those that take at least `min_bytes`.
std::optional<size_t> SmallestWithin(std::span<const Candidate> candidates, uint64_t min_bytes, double max_error) {
  std::optional<size_t> best;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Candidate& candidate = candidates[i];
    const bool keeps_it = candidate.error <= max_error || (candidates.size() > 1 && candidate.IsLossless());
    if (!keeps_it || candidate.bytes < min_bytes) continue;
    if (best && candidates[*best].bytes < candidate.bytes) continue;
    if (best && candidates[*best].bytes == candidate.bytes && candidates[*best].error <= candidate.error) continue;
    best = i;
  }
  return best;
}

struct Step {
  double saving = 0;  // of loss a byte
  size_t weight = 0;
  bool operator<(const Step& other) const {
    return saving != other.saving ? saving < other.saving : weight > other.weight;
  }
};

}  // namespace

uint64_t Budget::Bytes(uint64_t n_weights, uint64_t full_bytes) const {
  double bytes = value;
  if (unit == Unit::kBitsPerWeight) bytes = value * static_cast<double>(n_weights) / 8;
  if (unit == Unit::kShareOfModel) bytes = value * static_cast<double>(full_bytes);
  return static_cast<uint64_t>(std::min(bytes, 0x1.0p62));
}

Result<Budget> ParseBudget(std::string_view text) {
  for (const UnitName& unit : kUnits) {
    if (!text.ends_with(unit.suffix)) continue;
    const std::string_view number = text.substr(0, text.size() - unit.suffix.size());
    double value = 0;
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), value, std::chars_format::fixed);
    if (error != std::errc() || end != number.data() + number.size() || !std::isfinite(value) || value <= 0) break;
    return Budget{.unit = unit.unit, .value = value * unit.factor};
  }
  return InvalidArgument("no amount of bytes: \"" + std::string(text.substr(0, 40)) +
                         "\"; expected one like 24M, 1.5Gi, 1.35bpw (bits per weight) or 12% (of the full model)");
}

std::string BudgetText(const Budget& budget) {
  switch (budget.unit) {
    case Budget::Unit::kBitsPerWeight: return DumpJson(Json(budget.value)) + "bpw";
    // 7 * 0.01 * 100 is more than 7.
    case Budget::Unit::kShareOfModel: return DumpJson(Json(std::round(budget.value * 1e11) / 1e9)) + "%";
    case Budget::Unit::kBytes: break;
  }
  return std::to_string(static_cast<uint64_t>(std::min(budget.value, 0x1.0p62)));
}

Result<std::vector<size_t>> ChooseByError(const std::vector<std::vector<Candidate>>& weights,
                                          const std::vector<std::string>& names, double max_error) {
  std::vector<size_t> chosen;
  for (size_t w = 0; w < weights.size(); ++w) {
    const std::vector<Candidate>& candidates = weights[w];
    const std::optional<size_t> best = SmallestWithin(candidates, 0, max_error);
    if (!best) {
      const double least = std::ranges::min(candidates, {}, &Candidate::error).error;
      return FailedPrecondition("no code of " + names[w] + " keeps its error within " + DumpJson(Json(max_error)) +
                                ": the least is " + DumpJson(Json(least)));
    }
    chosen.push_back(*best);
  }
  return chosen;
}

std::optional<size_t> NextByError(std::span<const Candidate> candidates, size_t place, double max_error) {
  return SmallestWithin(candidates, candidates[place].bytes + 1, max_error);
}

Result<std::vector<size_t>> ChooseByBytes(const std::vector<std::vector<Candidate>>& weights, uint64_t bytes) {
  std::vector<std::vector<size_t>> hulls;
  std::vector<size_t> at(weights.size());  // place on the hull
  std::priority_queue<Step> steps;
  uint64_t used = 0;
  const auto push_step = [&](size_t w) {
    if (at[w] + 1 >= hulls[w].size()) return;
    const Candidate &from = weights[w][hulls[w][at[w]]], &to = weights[w][hulls[w][at[w] + 1]];
    steps.push({(from.loss - to.loss) / static_cast<double>(to.bytes - from.bytes), w});
  };
  for (size_t w = 0; w < weights.size(); ++w) {
    DF_CHECK(!weights[w].empty());
    hulls.push_back(LowerHull(weights[w]));
    used += weights[w][hulls[w].front()].bytes;
    push_step(w);
  }
  if (used > bytes) {
    return FailedPrecondition("the smallest codes of all weights take " + std::to_string(used) + " bytes, " +
                              std::to_string(bytes) + " are allowed; allow more, or give embeddings and head a code");
  }
  while (!steps.empty()) {
    const size_t w = steps.top().weight;
    steps.pop();
    const uint64_t more = weights[w][hulls[w][at[w] + 1]].bytes - weights[w][hulls[w][at[w]]].bytes;
    if (more > bytes - used) continue;  // a later step of another weight may fit
    used += more;
    ++at[w];
    push_step(w);
  }
  std::vector<size_t> chosen;
  for (size_t w = 0; w < weights.size(); ++w) chosen.push_back(hulls[w][at[w]]);
  return chosen;
}

}  // namespace df
