#include "cli/pool_probes.h"

#include "cli/command.h"
#include "cli/model_argument.h"
#include "cli/progress.h"
#include "cli/table.h"

namespace df::cli {

Result<PoolProbes> PoolProbes::Load(const std::string& base, const std::vector<std::string>& given,
                                    const eval::EvalOptions& options) {
  PoolProbes probes;
  for (const std::string& argument : given) {
    const size_t equals = argument.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == argument.size()) {
      return InvalidArgument("a probe is given as ID=FILE.jsonl, got \"" + argument + "\"");
    }
    probes.files_[argument.substr(0, equals)] = argument.substr(equals + 1);
  }
  if (probes.files_.empty()) return probes;
  if (base.empty()) return InvalidArgument("probes are asked of a model: give --base");
  probes.options_ = options;
  probes.options_.with_base = false;
  KernelContext context(options.n_threads == 0 ? UsableCpus() : options.n_threads);
  DF_ASSIGN_OR_RETURN(const ModelArgument model, ResolveModel(base));
  DF_ASSIGN_OR_RETURN(probes.base_, FromFiles(LoadBaseVariant(context, model.name, model.directory)));
  return probes;
}

Status PoolProbes::CheckIds(const PoolState& state, const std::string& added) const {
  for (const auto& [id, file] : files_) {
    if (id == added || state.FindOrNull(id) != nullptr) continue;
    return InvalidArgument("--probe " + Printable(id) + "=...: the id is not in the pool, nor what is added");
  }
  return Status::Ok();
}

Result<std::optional<double>> PoolProbes::Score(const std::string& id, const std::string& directory) const {
  const auto file = files_.find(id);
  if (file == files_.end()) return std::optional<double>();
  Progress progress("pool");
  eval::EvalOptions options = options_;
  options.on_progress = [&](const std::string& what, uint64_t done, uint64_t total) {
    progress.Update(what, done, total);
    return true;
  };
  const eval::Subject subject = {
      .name = id, .full_directory = {}, .codes = {{.code = "pool", .directory = directory}}, .task_file = file->second};
  DF_ASSIGN_OR_RETURN(const auto results, eval::EvaluateSubject(base_, subject, options));
  double right = 0, asked = 0;
  for (const eval::ItemSum& item : results.front().answers.correct) {
    right += item.sum;
    asked += item.weight;
  }
  return std::optional(asked > 0 ? right / asked : 0);
}

}  // namespace df::cli
