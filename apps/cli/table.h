// Tables and figures as all commands print them.
#ifndef DELTAFOLD_CLI_TABLE_H_
#define DELTAFOLD_CLI_TABLE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace df::cli {

enum class Align { kLeft, kRight };

struct Column {
  std::string title;
  Align align = Align::kLeft;
};

// Rows of text under titles, columns as wide as their widest cell. Cells are UTF-8 from anywhere: what a terminal
// would obey (a tensor name in a file is not to be trusted) is escaped.
class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void AddRow(std::vector<std::string> cells);  // as many as there are columns
  void AddRule();                               // a line before the totals
  std::string Render() const;                   // ends with a newline

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;  // an empty row is a rule
};

// `text` for a single line: base/utf8.h, Escaped.
std::string Printable(std::string_view text);

std::string FormatBytes(uint64_t bytes);  // "7.35 MB": decimal units, three digits
std::string FormatFixed(double value, int decimals);
std::string FormatPercent(double share);     // 0.0712 -> "7.1 %"
std::string FormatRatio(double ratio);       // 14.02 -> "14.0x"
std::string FormatDuration(double seconds);  // "0.4 s", "1:05", "2:03:04"

}  // namespace df::cli

#endif  // DELTAFOLD_CLI_TABLE_H_
