#include "eval/card.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "base/atomic_file.h"
#include "base/json.h"

namespace df::eval {
namespace {

constexpr std::string_view kOpening = "<!-- deltafold eval: measured, written again by `deltafold eval --card` -->";
constexpr std::string_view kClosing = "<!-- deltafold eval: end -->";
constexpr size_t kMaxCardBytes = size_t{16} << 20;

std::string CardOf(const std::string& directory) { return directory + "/README.md"; }

std::string Fixed(double value, int decimals) {
  std::array<char, 64> text = {};
  std::snprintf(text.data(), text.size(), "%.*f", decimals, value);
  return text.data();
}

std::string WithInterval(const Estimate& estimate, int decimals) {
  return Fixed(estimate.value, decimals) + " [" + Fixed(estimate.interval.low, decimals) + ", " +
         Fixed(estimate.interval.high, decimals) + "]";
}

// A name within a cell: it ends neither cell, code nor line.
std::string Quoted(const std::string& name) {
  std::string text = DumpJson(Json(name));
  text = text.substr(1, text.size() - 2);
  std::erase(text, '`');
  for (size_t at = text.find('|'); at != std::string::npos; at = text.find('|', at + 2)) text.insert(at, "\\");
  return "`" + text + "`";
}

void AddLine(std::string& table, const std::array<std::string, 4>& cells) {
  for (const std::string& cell : cells) table += "| " + cell + " ";
  table += "|\n";
}

void AddAnswers(const ReportRow& row, const ReportRow* full, std::string& table) {
  if (row.exact_match) {
    AddLine(table,
            {"exact match, " + std::to_string(row.n) + " questions of " + Quoted(row.task) + ", %",
             full && full->exact_match ? Fixed(full->exact_match->value, 1) : "", WithInterval(*row.exact_match, 1),
             row.exact_match_difference ? WithInterval(*row.exact_match_difference, 1) : ""});
  }
  if (row.answer_kl) {
    AddLine(table, {"KL(full, this) over the answers' tokens, nats", "", WithInterval(*row.answer_kl, 5), ""});
  }
  if (row.answer_top1) AddLine(table, {"same most probable token, %", "", Fixed(100 * *row.answer_top1, 2), ""});
}

void AddText(const ReportRow& row, const ReportRow* full, const CardFacts& facts, std::string& table) {
  if (row.perplexity) {
    AddLine(table, {"perplexity of " + Quoted(facts.text) + "; difference of logarithms",
                    full && full->perplexity ? Fixed(*full->perplexity, 3) : "", Fixed(*row.perplexity, 3),
                    row.log_perplexity_difference ? WithInterval(*row.log_perplexity_difference, 4) : ""});
  }
  if (row.text_kl) AddLine(table, {"KL(full, this) over its tokens, nats", "", WithInterval(*row.text_kl, 5), ""});
  if (row.text_top1) AddLine(table, {"same most probable token, %", "", Fixed(100 * *row.text_top1, 2), ""});
}

}  // namespace

std::string MeasuredSection(const ReportRow& row, const ReportRow* full, const CardFacts& facts) {
  std::string table;
  AddLine(table, {"", "full fine-tune", "this delta [95 %]", "difference [95 %]"});
  table += "|---|---:|---:|---:|\n";
  AddLine(table, {"bits a weight, all stored bytes", full ? Fixed(full->bits_per_weight, 3) : "",
                  Fixed(row.bits_per_weight, 3), ""});
  AddAnswers(row, full, table);
  AddText(row, full, facts, table);
  return std::string(kOpening) + "\n\n## Measured\n\n" + table + "\nBy `" + facts.program +
         " eval`; intervals are bootstraps over the questions, or windows of text.\n\n" + std::string(kClosing) + "\n";
}

std::string WithSection(std::string_view card, std::string_view section) {
  const size_t begin = card.find(kOpening);
  const size_t closing = begin == std::string_view::npos ? begin : card.find(kClosing, begin);
  if (closing == std::string_view::npos) {
    std::string text(card);
    if (!text.empty()) text += text.ends_with('\n') ? "\n" : "\n\n";
    return text + std::string(section);
  }
  size_t end = closing + kClosing.size();
  if (end < card.size() && card[end] == '\n') ++end;
  return std::string(card.substr(0, begin)) + std::string(section) + std::string(card.substr(end));
}

Status CheckCardOf(const std::string& directory) { return AtomicFile::Create(CardOf(directory)).status(); }

Status WriteCards(const Report& report, const CardFacts& facts) {
  for (const ReportRow& row : report.rows) {
    if (row.delta_directory.empty()) continue;
    const auto full = std::ranges::find_if(
        report.rows, [&](const ReportRow& other) { return other.variant == row.variant && other.code == "full"; });
    const std::string path = CardOf(row.delta_directory);
    Result<std::string> card = ReadFileBounded(path, kMaxCardBytes);
    if (card.status().code() == StatusCode::kNotFound) card = std::string();
    if (!card.ok()) return card.status();
    const std::string section = MeasuredSection(row, full == report.rows.end() ? nullptr : &*full, facts);
    DF_RETURN_IF_ERROR(WriteFileAtomically(path, WithSection(*card, section)));
  }
  return Status::Ok();
}

}  // namespace df::eval
