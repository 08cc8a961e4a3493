// Figures of an evaluation: a row a variant and code, set against the full fine-tune item by item, and a summary of
// each code over all variants.
#ifndef DELTAFOLD_EVAL_REPORT_H_
#define DELTAFOLD_EVAL_REPORT_H_

#include <optional>
#include <string>
#include <vector>

#include "base/json_fwd.h"
#include "eval/bootstrap.h"
#include "eval/evaluate.h"

namespace df::eval {

struct Estimate {
  double value = 0;
  Interval interval;  // 95 %, over the items
};

// Absent: not measured, for want of a task, a text or a full fine-tune.
struct ReportRow {
  std::string variant, code, task;
  std::string delta_directory;  // "" where it is no delta
  uint64_t bytes = 0, file_bytes = 0;
  double bits_per_weight = 0;
  size_t n = 0, correct = 0;            // questions
  std::optional<Estimate> exact_match;  // percent of the questions
  std::optional<double> answer_ce;      // nats a token of the reference answers
  std::optional<Estimate> answer_kl;    // KL(full || this), nats a token of the reference answers
  std::optional<double> answer_top1;    // share of those tokens on which the most probable token is the full one's
  std::optional<double> perplexity;     // of the text
  std::optional<Estimate> text_kl;
  std::optional<double> text_top1;
  // This less the full fine-tune's, on the same items.
  std::optional<Estimate> exact_match_difference;     // points
  std::optional<Estimate> log_perplexity_difference;  // log of the quotient of the perplexities
};

// What one code did to all variants that have it and a full fine-tune. Divergence is that of the answers, or of the
// text where no variant has a task.
struct CodeSummary {
  std::string code;
  size_t n_variants = 0;
  double bits_per_weight = 0;         // mean
  std::optional<double> exact_match;  // mean over variants, percent
  std::optional<double> loss;         // mean of the full one's less this, points
  std::optional<double> worst_loss;   // points
  std::string worst_variant;
  std::optional<double> kl;          // geometric mean over variants
  std::optional<Estimate> kl_ratio;  // to the first code's, geometric mean over the variants that have both
  std::optional<double> loss_ratio;  // mean loss over the first code's
};

struct Report {
  std::vector<ReportRow> rows;
  std::vector<CodeSummary> codes;  // full first, then by first appearance
};

// A divergence below this is taken as this in geometric means: f32 log-probabilities resolve no less.
inline constexpr double kLeastDivergence = 1e-6;

// `results`: those of EvaluateSubject, one subject after the other.
Report MakeReport(const std::vector<EvalResult>& results, const BootstrapOptions& options);

// {"results": [{variant, code, bits_per_weight, bytes, task, n, correct, exact_match, perplexity, kl_full,
// top1_agreement, ...}], "summary": [...]}; docs/evaluating.md has every key.
Json ToJson(const Report& report);

}  // namespace df::eval

#endif  // DELTAFOLD_EVAL_REPORT_H_
