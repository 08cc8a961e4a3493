#include "tools/targets.h"

#include "base/json.h"

namespace df::tools {
namespace {

Result<std::optional<double>> FigureOrAbsent(const Json& object, std::string_view key) {
  if (JsonMemberOrNull(object, key) == nullptr) return std::optional<double>();
  DF_ASSIGN_OR_RETURN(const double figure, JsonNumber(object, key));
  if (figure <= 0) return InvalidArgument(std::string(key) + " must be above 0");
  return std::optional<double>(figure);
}

Result<Target> ParseTarget(const Json& object) {
  Target target;
  DF_ASSIGN_OR_RETURN(target.name, JsonString(object, "name"));
  DF_ASSIGN_OR_RETURN(target.what, JsonString(object, "what"));
  DF_ASSIGN_OR_RETURN(target.unit, JsonString(object, "unit"));
  DF_ASSIGN_OR_RETURN(const std::string better, JsonString(object, "better"));
  if (better != "higher" && better != "lower") {
    return InvalidArgument(target.name + ": better must be higher or lower, got \"" + better + "\"");
  }
  target.higher_is_better = better == "higher";
  DF_ASSIGN_OR_RETURN(target.avx512, FigureOrAbsent(object, "avx512"));
  DF_ASSIGN_OR_RETURN(target.avx2, FigureOrAbsent(object, "avx2"));
  return target;
}

}  // namespace

std::optional<double> Target::For(std::string_view vector_target) const {
  if (vector_target == "avx512") return avx512;
  return vector_target == "avx2" ? avx2 : std::nullopt;
}

bool Target::Meets(double figure, const Interval& bounds) const {
  return higher_is_better ? bounds.low >= figure : bounds.high <= figure;
}

const Target* TargetTable::FindOrNull(std::string_view name) const {
  for (const Target& target : targets) {
    if (target.name == name) return &target;
  }
  return nullptr;
}

Result<TargetTable> ParseTargets(std::string_view text) {
  DF_ASSIGN_OR_RETURN(const Json json, ParseJson(text));
  TargetTable table;
  DF_ASSIGN_OR_RETURN(const int64_t pairs, JsonInt(json, "pairs", {.min = 1, .max = 10'000}));
  table.pairs = static_cast<size_t>(pairs);
  DF_ASSIGN_OR_RETURN(table.max_drift, JsonNumber(json, "max_drift"));
  const Json* targets = JsonMemberOrNull(json, "targets");
  if (targets == nullptr || !targets->is_array()) return InvalidArgument("targets must be a list");
  for (const Json& entry : *targets) {
    if (!entry.is_object()) return InvalidArgument("a target must be an object");
    DF_ASSIGN_OR_RETURN(Target target, ParseTarget(entry));
    if (table.FindOrNull(target.name) != nullptr) return InvalidArgument("target " + target.name + " is there twice");
    table.targets.push_back(std::move(target));
  }
  return table;
}

}  // namespace df::tools
