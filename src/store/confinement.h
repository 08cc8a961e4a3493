// Whether what a reader would open of a directory stays under a root that an operator has named.
#ifndef DELTAFOLD_STORE_CONFINEMENT_H_
#define DELTAFOLD_STORE_CONFINEMENT_H_

#include <optional>
#include <string>

#include "base/status.h"

namespace df {

// The place that `path` names, absolute, links resolved; nothing where nothing is, or where links go in circles.
std::optional<std::string> CanonicalPlace(const std::string& path);

// Whether canonical `path` is `directory` or lies under it: by whole parts, so that /a/bc is not under /a/b.
bool IsUnder(const std::string& path, const std::string& directory);

struct Confinement {
  std::string root;       // canonical
  std::string root_name;  // as messages call it
  std::string what;       // what is asked about, as messages call it
};

// kFailedPrecondition: it leads out of the root. Of what lies outside nothing is told, not even whether it exists.
Status LeadsOut(const Confinement& confinement);

// Whether `directory`, canonical, and every file in it, folders included, lie under the root; links may lead from
// folder to folder under it. What somebody with the right to write there changes afterwards is not seen. The only error
// is kFailedPrecondition (LeadsOut; a FIFO, socket or device; more than 4096 files; a folder that cannot be listed).
Status CheckConfined(const std::string& directory, const Confinement& confinement);

}  // namespace df

#endif  // DELTAFOLD_STORE_CONFINEMENT_H_
