// Where variants may be loaded from while the server runs: one directory and what lies under it.
#ifndef DELTAFOLD_SERVER_VARIANT_ROOT_H_
#define DELTAFOLD_SERVER_VARIANT_ROOT_H_

#include <string>

#include "base/status.h"

namespace df::server {

// Immutable, thread-safe. Messages hold no path but the one that was asked for.
class VariantRoot {
 public:
  // The only errors are kNotFound and kFailedPrecondition: `directory` is not there, or is none.
  static Result<VariantRoot> Open(const std::string& directory);

  // The directory that `given` means: an absolute path, one relative to the root, or a hub id whose snapshot in the
  // local cache lies under the root. Canonical: links are resolved, and the directory and every file in it, folders
  // included, lie under the root. What somebody with the right to write there changes afterwards is not seen: the root
  // is to be writable by the operator alone. The only errors are kInvalidArgument (no such path can be: empty, a NUL,
  // too long), kFailedPrecondition (not under the root, or leading out of it; a FIFO, socket or device; too many files)
  // and kNotFound (nothing there). Of what lies outside nothing is told, not even whether it exists.
  Result<std::string> Resolve(const std::string& given) const;
  // `given`, that Resolve has found, in words that mean the same in a later process: absolute with its links as they
  // are, or the hub id. To be resolved again before it is read.
  std::string AsGiven(const std::string& given) const;

 private:
  VariantRoot(std::string directory, std::string given) : directory_(std::move(directory)), given_(std::move(given)) {}

  std::string directory_;  // canonical
  std::string given_;      // absolute, links as they are
};

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_VARIANT_ROOT_H_
