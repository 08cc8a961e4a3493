// The questions by which `deltafold pool add --probe` judges a merge.
#ifndef DELTAFOLD_CLI_POOL_PROBES_H_
#define DELTAFOLD_CLI_POOL_PROBES_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "eval/evaluate.h"
#include "merge/pool_state.h"
#include "store/variant_source.h"

namespace df::cli {

// Asks a base with an adapter the questions of an id.
class PoolProbes {
 public:
  // `given`: ID=FILE.jsonl each; the base is loaded where there are any. Of `options` n_threads and n_items count. The
  // only errors are kInvalidArgument (another form, no base) and those of loading it.
  static Result<PoolProbes> Load(const std::string& base, const std::vector<std::string>& given,
                                 const eval::EvalOptions& options);
  bool empty() const { return files_.empty(); }

  // kInvalidArgument naming an id that is neither in the pool nor `added`: nobody would ask its questions.
  Status CheckIds(const PoolState& state, const std::string& added) const;

  // Share of the questions of `id` that are answered right with the adapter in `directory`; nothing where it has none.
  Result<std::optional<double>> Score(const std::string& id, const std::string& directory) const;

 private:
  std::map<std::string, std::string> files_;
  LoadedBase base_;
  eval::EvalOptions options_;
};

}  // namespace df::cli

#endif  // DELTAFOLD_CLI_POOL_PROBES_H_
