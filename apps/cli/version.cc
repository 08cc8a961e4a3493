#include <iostream>

#include "cli/command.h"

namespace df::cli {

void AddVersion(const Command& app) {
  const Command command = app.Sub("version", "Print the version");
  command.OnRun([] {
    std::cout << "deltafold " << DELTAFOLD_VERSION << "\n";
    return 0;
  });
}

}  // namespace df::cli
