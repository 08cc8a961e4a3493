#include "eval/report.h"

#include <algorithm>
#include <cmath>

#include "base/json.h"

namespace df::eval {
namespace {

constexpr char kFull[] = "full";
constexpr char kBase[] = "base";

Estimate EstimateOf(const std::vector<ItemSum>& items, double factor, const BootstrapOptions& options) {
  const Interval interval = MeanInterval(items, options);
  return {.value = factor * MeanOf(items), .interval = {factor * interval.low, factor * interval.high}};
}

Estimate DifferenceOf(const std::vector<ItemSum>& a, const std::vector<ItemSum>& b, double factor,
                      const BootstrapOptions& options) {
  const Interval interval = DifferenceInterval(a, b, options);
  return {.value = factor * (MeanOf(a) - MeanOf(b)), .interval = {factor * interval.low, factor * interval.high}};
}

size_t CountOf(const std::vector<ItemSum>& items) {
  double sum = 0;
  for (const ItemSum& item : items) sum += item.sum;
  return static_cast<size_t>(std::llround(sum));
}

// `full`: the reference of the same subject, null without.
ReportRow RowOf(const EvalResult& result, const EvalResult* full, const BootstrapOptions& options) {
  ReportRow row;
  row.variant = result.variant;
  row.code = result.code;
  row.task = result.task;
  row.delta_directory = result.delta_directory;
  row.bytes = result.bytes;
  row.file_bytes = result.file_bytes;
  row.bits_per_weight = result.bits_per_weight;
  const ItemScores& answers = result.answers;
  const ItemScores& windows = result.windows;
  if (!answers.correct.empty()) {
    row.n = answers.correct.size();
    row.correct = CountOf(answers.correct);
    row.exact_match = EstimateOf(answers.correct, 100, options);
    row.answer_ce = MeanOf(answers.cross_entropy);
    if (full != nullptr)
      row.exact_match_difference = DifferenceOf(answers.correct, full->answers.correct, 100, options);
  }
  if (!answers.divergence.empty()) {
    row.answer_kl = EstimateOf(answers.divergence, 1, options);
    row.answer_top1 = MeanOf(answers.agreement);
  }
  if (!windows.cross_entropy.empty()) {
    row.perplexity = std::exp(MeanOf(windows.cross_entropy));
    if (full != nullptr) {
      row.log_perplexity_difference = DifferenceOf(windows.cross_entropy, full->windows.cross_entropy, 1, options);
    }
  }
  if (!windows.divergence.empty()) {
    row.text_kl = EstimateOf(windows.divergence, 1, options);
    row.text_top1 = MeanOf(windows.agreement);
  }
  return row;
}

const EvalResult* FindOrNull(const std::vector<EvalResult>& results, const std::string& variant,
                             const std::string& code) {
  const auto found = std::find_if(results.begin(), results.end(), [&](const EvalResult& result) {
    return result.variant == variant && result.code == code;
  });
  return found == results.end() ? nullptr : &*found;
}

// One code over the variants, gathered.
struct Gathered {
  std::vector<const EvalResult*> results, full;  // of the same variants
  bool has_task = false;
};

const std::vector<ItemSum>& Divergence(const EvalResult& result, bool of_answers) {
  return of_answers ? result.answers.divergence : result.windows.divergence;
}

double GeometricMean(const Gathered& gathered) {
  double sum = 0;
  for (const EvalResult* result : gathered.results) {
    sum += std::log(std::max(MeanOf(Divergence(*result, gathered.has_task)), kLeastDivergence));
  }
  return std::exp(sum / static_cast<double>(gathered.results.size()));
}

void AddMatches(const Gathered& gathered, CodeSummary& summary) {
  double matches = 0, losses = 0, worst = -INFINITY;
  size_t n = 0;
  for (size_t i = 0; i < gathered.results.size(); ++i) {
    if (gathered.results[i]->answers.correct.empty()) continue;
    const double match = 100 * MeanOf(gathered.results[i]->answers.correct);
    const double loss = 100 * MeanOf(gathered.full[i]->answers.correct) - match;
    ++n;
    matches += match;
    losses += loss;
    if (loss <= worst) continue;
    worst = loss;
    summary.worst_variant = gathered.results[i]->variant;
  }
  if (n == 0) return;
  summary.exact_match = matches / static_cast<double>(n);
  summary.loss = losses / static_cast<double>(n);
  summary.worst_loss = worst;
}

std::optional<Estimate> RatioOf(const Gathered& code, const Gathered& first, const BootstrapOptions& options) {
  std::vector<PairedItems> pairs;
  for (const EvalResult* result : code.results) {
    for (const EvalResult* other : first.results) {
      if (other->variant != result->variant) continue;
      pairs.push_back({.a = Divergence(*result, code.has_task), .b = Divergence(*other, code.has_task)});
      if (pairs.back().a.empty() || pairs.back().b.empty()) pairs.pop_back();
    }
  }
  if (pairs.empty()) return std::nullopt;
  return Estimate{.value = GeometricRatio(pairs, kLeastDivergence),
                  .interval = GeometricRatioInterval(pairs, kLeastDivergence, options)};
}

Gathered Gather(const std::vector<EvalResult>& results, const std::string& code) {
  Gathered gathered;
  for (const EvalResult& result : results) {
    if (result.code != code) continue;
    const EvalResult* full = FindOrNull(results, result.variant, kFull);
    if (full == nullptr) continue;
    gathered.results.push_back(&result);
    gathered.full.push_back(full);
  }
  gathered.has_task = !gathered.results.empty() &&
                      std::all_of(gathered.results.begin(), gathered.results.end(),
                                  [](const EvalResult* result) { return !result->answers.divergence.empty(); });
  return gathered;
}

CodeSummary Summarise(const Gathered& gathered, const std::string& code, bool has_divergence) {
  CodeSummary summary;
  summary.code = code;
  summary.n_variants = gathered.results.size();
  for (const EvalResult* result : gathered.results) summary.bits_per_weight += result->bits_per_weight;
  summary.bits_per_weight /= static_cast<double>(gathered.results.size());
  AddMatches(gathered, summary);
  if (has_divergence) summary.kl = GeometricMean(gathered);
  return summary;
}

bool AllHaveDivergence(const Gathered& gathered) {
  return std::all_of(gathered.results.begin(), gathered.results.end(),
                     [&](const EvalResult* result) { return !Divergence(*result, gathered.has_task).empty(); });
}

std::vector<std::string> CodesOf(const std::vector<EvalResult>& results) {
  std::vector<std::string> codes = {kFull, kBase};
  for (const EvalResult& result : results) {
    if (std::find(codes.begin(), codes.end(), result.code) == codes.end()) codes.push_back(result.code);
  }
  return codes;
}

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }
Json OrNull(const std::optional<Estimate>& estimate) { return estimate ? Json(estimate->value) : Json(nullptr); }
Json IntervalOrNull(const std::optional<Estimate>& estimate) {
  return estimate ? Json::array({estimate->interval.low, estimate->interval.high}) : Json(nullptr);
}
Json WithInterval(const std::optional<Estimate>& estimate) {
  if (!estimate) return nullptr;
  return {{"value", estimate->value}, {"interval", IntervalOrNull(estimate)}};
}

Json ToJson(const ReportRow& row) {
  const bool over_answers = row.answer_kl.has_value();
  const bool over_text = !over_answers && row.text_kl.has_value();
  Json json = {{"variant", row.variant},
               {"code", row.code},
               {"bits_per_weight", row.bits_per_weight},
               {"bytes", row.bytes},
               {"task", row.task.empty() ? Json(nullptr) : Json(row.task)},
               {"n", row.n},
               {"correct", row.correct},
               {"exact_match", OrNull(row.exact_match)},
               {"perplexity", OrNull(row.perplexity)},
               {"kl_full", over_answers ? OrNull(row.answer_kl) : OrNull(row.text_kl)},
               {"top1_agreement", over_answers ? OrNull(row.answer_top1) : OrNull(row.text_top1)}};
  json["kl_over"] = over_answers ? Json("answers") : over_text ? Json("text") : Json(nullptr);
  json["file_bytes"] = row.file_bytes;
  json["exact_match_interval"] = IntervalOrNull(row.exact_match);
  json["answer_ce"] = OrNull(row.answer_ce);
  json["answer_kl_full"] = OrNull(row.answer_kl);
  json["answer_kl_full_interval"] = IntervalOrNull(row.answer_kl);
  json["answer_top1_agreement"] = OrNull(row.answer_top1);
  json["text_kl_full"] = OrNull(row.text_kl);
  json["text_kl_full_interval"] = IntervalOrNull(row.text_kl);
  json["text_top1_agreement"] = OrNull(row.text_top1);
  json["difference"] = {{"exact_match", WithInterval(row.exact_match_difference)},
                        {"log_perplexity", WithInterval(row.log_perplexity_difference)}};
  return json;
}

Json ToJson(const CodeSummary& code) {
  return {{"code", code.code},
          {"variants", code.n_variants},
          {"bits_per_weight", code.bits_per_weight},
          {"exact_match", OrNull(code.exact_match)},
          {"loss", OrNull(code.loss)},
          {"worst_loss", OrNull(code.worst_loss)},
          {"worst_variant", code.worst_variant.empty() ? Json(nullptr) : Json(code.worst_variant)},
          {"kl_full", OrNull(code.kl)},
          {"kl_ratio", WithInterval(code.kl_ratio)},
          {"loss_ratio", OrNull(code.loss_ratio)}};
}

}  // namespace

Report MakeReport(const std::vector<EvalResult>& results, const BootstrapOptions& options) {
  Report report;
  for (const EvalResult& result : results) {
    report.rows.push_back(RowOf(result, FindOrNull(results, result.variant, kFull), options));
  }
  std::optional<Gathered> first;  // of the codes, neither base nor full
  for (const std::string& code : CodesOf(results)) {
    const Gathered gathered = Gather(results, code);
    if (gathered.results.empty()) continue;
    const bool is_code = code != kFull && code != kBase;
    CodeSummary summary = Summarise(gathered, code, code != kFull && AllHaveDivergence(gathered));
    if (is_code && !first) first = gathered;
    if (is_code && first) {
      summary.kl_ratio = RatioOf(gathered, *first, options);
      CodeSummary of_first;
      AddMatches(*first, of_first);
      if (summary.loss && of_first.loss && *of_first.loss != 0) summary.loss_ratio = *summary.loss / *of_first.loss;
    }
    report.codes.push_back(std::move(summary));
  }
  return report;
}

Json ToJson(const Report& report) {
  Json json = {{"results", Json::array()}, {"summary", Json::array()}};
  for (const ReportRow& row : report.rows) json["results"].push_back(ToJson(row));
  for (const CodeSummary& code : report.codes) json["summary"].push_back(ToJson(code));
  return json;
}

}  // namespace df::eval
