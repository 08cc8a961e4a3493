#include "cli/table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "base/check.h"
#include "base/utf8.h"

namespace df::cli {
namespace {

// Characters, not bytes: continuation bytes of UTF-8 take no place.
size_t DisplayWidth(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

void AppendCell(std::string& line, const std::string& cell, size_t width, Align align) {
  const std::string padding(width - DisplayWidth(cell), ' ');
  line += align == Align::kRight ? padding + cell : cell + padding;
}

std::string Trimmed(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace

void Table::AddRow(std::vector<std::string> cells) {
  DF_CHECK(cells.size() == columns_.size());
  for (std::string& cell : cells) cell = Printable(cell);
  rows_.push_back(std::move(cells));
}

void Table::AddRule() { rows_.emplace_back(); }

std::string Table::Render() const {
  std::vector<size_t> widths;
  for (size_t c = 0; c < columns_.size(); ++c) {
    size_t width = DisplayWidth(columns_[c].title);
    for (const auto& row : rows_) width = std::max(width, row.empty() ? 0 : DisplayWidth(row[c]));
    widths.push_back(width);
  }
  const auto render_row = [&](const auto& cell_of) {
    std::string line;
    for (size_t c = 0; c < columns_.size(); ++c) {
      if (c > 0) line += "  ";
      AppendCell(line, cell_of(c), widths[c], columns_[c].align);
    }
    return Trimmed(std::move(line)) + "\n";
  };
  const std::string rule = render_row([&](size_t c) { return std::string(widths[c], '-'); });
  std::string text = render_row([&](size_t c) { return columns_[c].title; }) + rule;
  for (const auto& row : rows_) {
    text += row.empty() ? rule : render_row([&](size_t c) { return row[c]; });
  }
  return text;
}

std::string Printable(std::string_view text) { return Escaped(text); }

std::string FormatFixed(double value, int decimals) {
  std::array<char, 400> text = {};  // the longest double in %f has 309 digits before the point
  std::snprintf(text.data(), text.size(), "%.*f", std::clamp(decimals, 0, 17), value);
  return text.data();
}

std::string FormatBytes(uint64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"B", "kB", "MB", "GB", "TB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 999.5 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  const int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return FormatFixed(value, decimals) + " " + std::string(kUnits[unit]);
}

std::string FormatPercent(double share) { return FormatFixed(share * 100, 1) + " %"; }

std::string FormatRatio(double ratio) { return FormatFixed(ratio, ratio >= 99.95 ? 0 : 1) + "x"; }

std::string FormatDuration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0 || seconds > 1e9) return "-";
  if (seconds < 59.5) return FormatFixed(seconds, seconds < 9.95 ? 1 : 0) + " s";
  const auto whole = static_cast<long long>(std::llround(seconds));
  std::array<char, 40> text = {};
  if (whole < 3600) {
    std::snprintf(text.data(), text.size(), "%lld:%02lld", whole / 60, whole % 60);
  } else {
    std::snprintf(text.data(), text.size(), "%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
  }
  return text.data();
}

}  // namespace df::cli
