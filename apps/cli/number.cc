#include "cli/number.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>

#include "cli/table.h"

namespace df::cli {

CLI::Validator WholeNumber(bool allow_unit) {
  const auto check = [allow_unit](std::string& text) -> std::string {
    uint64_t value = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    const bool has_leading_zero = rest - text.data() > 1 && text[0] == '0';
    const auto is_letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; };
    const bool is_whole = rest == end || (allow_unit && std::all_of(rest, end, is_letter));
    if (error == std::errc::result_out_of_range) return "must be below 2^64, got " + Printable(text);
    if (error != std::errc() || has_leading_zero || !is_whole) {
      return "must be a whole number of 0 or more" + std::string(allow_unit ? ", with or without a unit" : "") +
             ", got \"" + Printable(text) + "\"";
    }
    return "";
  };
  return CLI::Validator(check, "", "WholeNumber");
}

}  // namespace df::cli
