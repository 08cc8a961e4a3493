#include <iostream>

#include "cli/command.h"

namespace df::cli {

void AddVersion(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("version", "Print the version");
  command->callback([&exit_code] {
    std::cout << "deltafold " << DELTAFOLD_VERSION << "\n";
    exit_code = 0;
  });
}

}  // namespace df::cli
