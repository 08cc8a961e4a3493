#include "cli/eval_tables.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "cli/table.h"

namespace df::cli {
namespace {

constexpr size_t kMaxSeries = 6;  // of a plot
constexpr char kNone[] = "-";

std::string Fixed(const std::optional<double>& value, int decimals) {
  return value ? FormatFixed(*value, decimals) : kNone;
}

// "-1.5 [-3.0, -0.5]".
std::string WithInterval(const std::optional<eval::Estimate>& estimate, int decimals) {
  if (!estimate) return kNone;
  return FormatFixed(estimate->value, decimals) + " [" + FormatFixed(estimate->interval.low, decimals) + ", " +
         FormatFixed(estimate->interval.high, decimals) + "]";
}

std::string Value(const std::optional<eval::Estimate>& estimate, int decimals) {
  return estimate ? FormatFixed(estimate->value, decimals) : kNone;
}

const eval::ReportRow* FullOrNull(const eval::Report& report, const std::string& variant) {
  const auto found = std::find_if(report.rows.begin(), report.rows.end(), [&](const eval::ReportRow& row) {
    return row.variant == variant && row.code == "full";
  });
  return found == report.rows.end() ? nullptr : &*found;
}

bool Any(const eval::Report& report, const auto& has) {
  return std::any_of(report.rows.begin(), report.rows.end(), has);
}

// Exact answers, and what the reference answers' tokens say.
void AddTaskTable(const eval::Report& report, std::string& text) {
  if (!Any(report, [](const eval::ReportRow& row) { return row.n > 0; })) return;
  Table table({{"variant"},
               {"code"},
               {"bits/weight", Align::kRight},
               {"full %", Align::kRight},
               {"this %", Align::kRight},
               {"difference [95 %]", Align::kRight},
               {"of", Align::kRight},
               {"KL(full || this)", Align::kRight},
               {"same top token", Align::kRight},
               {"CE", Align::kRight}});
  for (const eval::ReportRow& row : report.rows) {
    if (row.n == 0) continue;
    const eval::ReportRow* full = FullOrNull(report, row.variant);
    table.AddRow({row.variant, row.code, FormatFixed(row.bits_per_weight, 3),
                  full == nullptr ? kNone : Value(full->exact_match, 1), Value(row.exact_match, 1),
                  row.code == "full" ? "" : WithInterval(row.exact_match_difference, 1), std::to_string(row.n),
                  WithInterval(row.answer_kl, 5), row.answer_top1 ? FormatPercent(*row.answer_top1) : kNone,
                  Fixed(row.answer_ce, 4)});
  }
  text +=
      "Answers: exact match of the greedy answer; KL, top token and cross entropy over the reference answers' "
      "tokens\n" +
      table.Render() + "\n";
}

void AddTextTable(const eval::Report& report, std::string& text) {
  if (!Any(report, [](const eval::ReportRow& row) { return row.perplexity.has_value(); })) return;
  Table table({{"variant"},
               {"code"},
               {"bits/weight", Align::kRight},
               {"full perplexity", Align::kRight},
               {"this", Align::kRight},
               {"log difference [95 %]", Align::kRight},
               {"KL(full || this)", Align::kRight},
               {"same top token", Align::kRight}});
  for (const eval::ReportRow& row : report.rows) {
    if (!row.perplexity) continue;
    const eval::ReportRow* full = FullOrNull(report, row.variant);
    table.AddRow({row.variant, row.code, FormatFixed(row.bits_per_weight, 3),
                  full == nullptr ? kNone : Fixed(full->perplexity, 3), Fixed(row.perplexity, 3),
                  row.code == "full" ? "" : WithInterval(row.log_perplexity_difference, 4),
                  WithInterval(row.text_kl, 5), row.text_top1 ? FormatPercent(*row.text_top1) : kNone});
  }
  text += "Text\n" + table.Render() + "\n";
}

// Nobody is the worst where none loses.
std::string WorstOf(const eval::CodeSummary& code) { return *code.worst_loss > 0 ? code.worst_variant : ""; }

void AddSummary(const eval::Report& report, std::string& text) {
  if (report.codes.empty()) return;
  const auto is_code = [](const eval::CodeSummary& code) { return code.code != "full" && code.code != "base"; };
  const auto first = std::find_if(report.codes.begin(), report.codes.end(), is_code);
  const std::string to_first = first == report.codes.end() ? "the first" : first->code;
  Table table({{"code"},
               {"variants", Align::kRight},
               {"bits/weight", Align::kRight},
               {"exact match %", Align::kRight},
               {"loss", Align::kRight},
               {"loss / " + to_first, Align::kRight},
               {"worst loss"},
               {"KL", Align::kRight},
               {"KL / " + to_first + " [95 %]", Align::kRight}});
  for (const eval::CodeSummary& code : report.codes) {
    table.AddRow({code.code, std::to_string(code.n_variants), FormatFixed(code.bits_per_weight, 3),
                  Fixed(code.exact_match, 2), Fixed(code.loss, 2), Fixed(code.loss_ratio, 3),
                  code.worst_loss ? FormatFixed(*code.worst_loss, 1) + " " + WorstOf(code) : kNone, Fixed(code.kl, 5),
                  WithInterval(code.kl_ratio, 3)});
  }
  text += "All variants with a full fine-tune: means, KL and its ratios geometric\n" + table.Render();
}

tools::Plot PlotOf(const eval::Report& report, const std::string& title, const std::string& label,
                   std::optional<double> eval::CodeSummary::* value) {
  tools::Plot plot = {.title = title, .x_label = "bits a weight, all stored bytes", .y_label = label, .series = {}};
  for (const eval::CodeSummary& code : report.codes) {
    if (code.code == "full" || code.code == "base" || !(code.*value)) continue;
    const tools::Point point = {code.bits_per_weight, std::max(0.0, *(code.*value))};
    if (plot.series.size() < kMaxSeries) {
      plot.series.push_back({.name = code.code, .points = {point}});
      continue;
    }
    tools::Series& others = plot.series.back();
    others.name = "others";
    others.points.push_back(point);
    std::sort(others.points.begin(), others.points.end(), [](const auto& a, const auto& b) { return a.x < b.x; });
  }
  return plot;
}

}  // namespace

std::string RenderTables(const eval::Report& report) {
  std::string text;
  AddTaskTable(report, text);
  AddTextTable(report, text);
  AddSummary(report, text);
  return text;
}

std::vector<tools::Plot> PlotsOf(const eval::Report& report) {
  return {PlotOf(report, "What is lost of exact match", "points below the full fine-tune", &eval::CodeSummary::loss),
          PlotOf(report, "Divergence from the full fine-tune", "KL, geometric mean", &eval::CodeSummary::kl)};
}

}  // namespace df::cli
