// Unsigned numbers of the command line, read strictly. (CLI11 takes "-1" for 18446744073709551615 and "010" for 8.)
#ifndef DELTAFOLD_CLI_NUMBER_H_
#define DELTAFOLD_CLI_NUMBER_H_

#include <CLI/CLI.hpp>
#include <string>

namespace df::cli {

// Accepts a whole decimal number that fits 64 bits; with `allow_unit` letters may follow ("4GB").
CLI::Validator WholeNumber(bool allow_unit);

// An option for an unsigned integer, or an optional one.
template <typename T>
CLI::Option* AddCount(CLI::App& command, const std::string& name, T& value, const std::string& help) {
  return command.add_option(name, value, help)->check(WholeNumber(/*allow_unit=*/false));
}

// An option for a number of bytes, which may have a unit: "4GB" = 4 * 1024^3.
template <typename T>
CLI::Option* AddByteSize(CLI::App& command, const std::string& name, T& value, const std::string& help) {
  // Transformations run in the reverse order.
  return command.add_option(name, value, help)
      ->transform(CLI::AsSizeValue(false))
      ->transform(WholeNumber(/*allow_unit=*/true));
}

}  // namespace df::cli

#endif  // DELTAFOLD_CLI_NUMBER_H_
