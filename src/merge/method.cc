#include "merge/method.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "merge/dare.h"
#include "merge/linear.h"
#include "merge/monosoup.h"
#include "merge/opcm.h"
#include "merge/slerp.h"
#include "merge/svd_average.h"
#include "merge/task_arithmetic.h"
#include "merge/ties.h"

namespace df::merge {
namespace {

constexpr double kLargest = 1e6;  // of factors: beyond it a recipe is mistaken
constexpr Parameter kWeight{.name = "weight",
                            .per_model = true,
                            .is_required = true,
                            .otherwise = 1,
                            .least = -kLargest,
                            .most = kLargest,
                            .meaning = "what a model counts"};
constexpr Parameter kDensity{.name = "density",
                             .per_model = true,
                             .otherwise = 1,
                             .least = 1e-6,
                             .most = 1,
                             .meaning = "share of a task vector's entries that is kept"};
constexpr Parameter kLambda{.name = "lambda",
                            .otherwise = 1,
                            .least = -kLargest,
                            .most = kLargest,
                            .meaning = "factor of the merged task vector"};
constexpr Parameter Normalize(double otherwise) {
  return {.name = "normalize",
          .kind = ParameterKind::kFlag,
          .otherwise = otherwise,
          .least = 0,
          .most = 1,
          .meaning = "divide by the sum of the weights"};
}
constexpr Parameter kRescale{.name = "rescale",
                             .kind = ParameterKind::kFlag,
                             .otherwise = 1,
                             .least = 0,
                             .most = 1,
                             .meaning = "divide what is kept by its density"};
constexpr Parameter kSeed{.name = "seed",
                          .kind = ParameterKind::kCount,
                          .least = 0,
                          .most = 0x1p53,
                          .meaning = "of the draws which entries are kept"};
constexpr Parameter Energy(double otherwise) {
  return {.name = "energy",
          .otherwise = otherwise,
          .least = 0,
          .most = 1,
          .meaning = "share of the squares that the leading singular values reach"};
}

constexpr Parameter kLinear[] = {kWeight, Normalize(1)};
constexpr Parameter kTaskArithmetic[] = {kWeight, kLambda, Normalize(0)};
constexpr Parameter kSlerp[] = {{.name = "t",
                                 .is_required = true,
                                 .least = 0,
                                 .most = 1,
                                 .meaning = "place between the first model (0) and the second (1)"}};
constexpr Parameter kTies[] = {kWeight, kDensity, kLambda, Normalize(1)};
constexpr Parameter kDare[] = {kWeight, kDensity, kLambda, Normalize(0), kRescale, kSeed};
constexpr std::string_view kRankOrEnergy[] = {"rank", "energy"};
constexpr Parameter kSvdAverage[] = {{.name = "rank",
                                      .kind = ParameterKind::kCount,
                                      .least = 0,
                                      .most = 30000,
                                      .meaning = "leading singular values kept of each task vector"},
                                     Energy(0)};
constexpr Parameter kMonosoup[] = {Energy(0.8),
                                   {.name = "effective_rank",
                                    .kind = ParameterKind::kFlag,
                                    .least = 0,
                                    .most = 1,
                                    .meaning = "keep as many values as the spectrum's entropy tells instead"}};
constexpr Parameter kOpcm[] = {{.name = "alpha",
                                .otherwise = 0.5,
                                .least = 0,
                                .most = 1,
                                .meaning = "share of the sum of singular values that is projected out whole"}};

constexpr Method kMethods[] = {
    {.name = "linear",
     .summary = "weighted mean of the models",
     .needs_base = false,
     .parameters = kLinear,
     .merge = MergeLinear},
    {.name = "task_arithmetic",
     .summary = "weighted sum of the differences to the base",
     .parameters = kTaskArithmetic,
     .merge = MergeTaskArithmetic},
    {.name = "slerp",
     .summary = "between two models on the sphere",
     .needs_base = false,
     .min_models = 2,
     .max_models = 2,
     .parameters = kSlerp,
     .merge = MergeSlerp},
    {.name = "ties",
     .summary = "largest entries of the differences, those of the elected sign averaged",
     .parameters = kTies,
     .merge = MergeTies},
    {.name = "dare_linear",
     .summary = "sum of differences of which entries are dropped at random",
     .parameters = kDare,
     .merge = MergeDareLinear},
    {.name = "dare_ties",
     .summary = "the same, entries of the elected sign alone",
     .parameters = kDare,
     .merge = MergeDareTies},
    {.name = "svd_average",
     .summary = "mean of the differences, each cut to its leading singular values",
     .parameters = kSvdAverage,
     .one_of = kRankOrEnergy,
     .merge = MergeSvdAverage},
    {.name = "monosoup",
     .summary = "one checkpoint, the tail of its difference's spectrum damped",
     .parameters = kMonosoup,
     .merge = MergeMonosoup},
    {.name = "opcm",
     .summary = "models one after another, each without what it shares with the sum before",
     .parameters = kOpcm,
     .has_second_pass = true,
     .merge = MergeOpcm},
};

std::string ParameterNames(const Method& method) {
  std::string names;
  for (const Parameter& parameter : method.parameters) {
    names += (names.empty() ? "" : ", ") + std::string(parameter.name);
  }
  return names;
}

std::string Number(double value) {
  const double size = std::abs(value);
  if (size >= 1e16 || (size > 0 && size < 1e-6)) {  // too long, or 0, without an exponent
    char text[32];
    std::snprintf(text, sizeof(text), "%.6g", value);
    return text;
  }
  std::string text = std::to_string(value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

void Assign(std::string_view name, std::optional<size_t> model, double value, Settings& settings) {
  const auto assign_each = [&](std::vector<double>& values) {
    if (model) {
      values[*model] = value;
    } else {
      std::ranges::fill(values, value);
    }
  };
  if (name == "weight") assign_each(settings.weights);
  if (name == "density") assign_each(settings.densities);
  if (name == "lambda") settings.lambda = value;
  if (name == "normalize") settings.normalize = value != 0;
  if (name == "rescale") settings.rescale = value != 0;
  if (name == "t") settings.t = value;
  if (name == "rank") settings.rank = static_cast<size_t>(value);
  if (name == "energy") settings.energy = value;
  if (name == "effective_rank") settings.effective_rank = value != 0;
  if (name == "alpha") settings.alpha = value;
  if (name == "seed") settings.seed = static_cast<uint64_t>(value);
}

Status CheckView(const TensorGroup& group, const TensorView& view, const std::string& whose) {
  const TensorView& first = group.models[0];
  if (!IsWeightDType(view.dtype)) {
    return Unsupported("tensor " + group.name + " of " + whose + " is " + std::string(DTypeName(view.dtype)) +
                       ": F32, BF16 and F16 can be merged");
  }
  const auto elements = view.shape.TryElements();
  if (!elements || *elements != view.elements()) {
    return InvalidArgument("tensor " + group.name + " of " + whose + " has " + std::to_string(view.elements()) +
                           " elements, not those of its shape " + ToString(view.shape));
  }
  if (view.shape == first.shape) return Status::Ok();
  return InvalidArgument("tensor " + group.name + " has shape " + ToString(view.shape) + " in " + whose + " and " +
                         ToString(first.shape) + " in " + group.ModelName(0) + ": they cannot be merged");
}

Status CheckGroup(const Method& method, const TensorGroup& group, const Settings& settings) {
  const size_t n_models = group.models.size();
  const std::string name(method.name);
  if (method.needs_base && !group.base) {
    return InvalidArgument("tensor " + group.name + ": " + name + " needs a base model");
  }
  if (n_models < method.min_models || n_models > method.max_models) {
    const std::string wanted = method.min_models == method.max_models ? std::to_string(method.min_models)
                                                                      : "at least " + std::to_string(method.min_models);
    return InvalidArgument("tensor " + group.name + ": " + name + " merges " + wanted + " models, not " +
                           std::to_string(n_models));
  }
  if (settings.weights.size() != n_models || settings.densities.size() != n_models) {
    return InvalidArgument("tensor " + group.name + ": settings for " + std::to_string(settings.weights.size()) +
                           " models, but there are " + std::to_string(n_models));
  }
  if (group.base) DF_RETURN_IF_ERROR(CheckView(group, *group.base, group.BaseName()));
  for (size_t i = 0; i < n_models; ++i) {
    DF_RETURN_IF_ERROR(CheckView(group, group.models[i], group.ModelName(i)));
  }
  return Status::Ok();
}

}  // namespace

std::string_view WayName(Way way) {
  switch (way) {
    case Way::kElementwise: return "element-wise";
    case Way::kCopied: return "copied";
    case Way::kGram: return "Gram eigenvalues";
    case Way::kRandomised: return "randomised";
  }
  return "";
}

std::span<const Method> Methods() { return kMethods; }

const Method* FindMethodOrNull(std::string_view name) {
  const auto* found = std::ranges::find(kMethods, name, &Method::name);
  return found == std::end(kMethods) ? nullptr : found;
}

const Parameter* FindParameterOrNull(const Method& method, std::string_view name) {
  const auto found = std::ranges::find(method.parameters, name, &Parameter::name);
  return found == method.parameters.end() ? nullptr : &*found;
}

Settings DefaultSettings(const Method& method, size_t n_models) {
  Settings settings{.weights = std::vector<double>(n_models, 1.0), .densities = std::vector<double>(n_models, 1.0)};
  for (const Parameter& parameter : method.parameters) {
    Assign(parameter.name, std::nullopt, parameter.otherwise, settings);
  }
  return settings;
}

Status SetParameter(const Method& method, std::string_view name, std::optional<size_t> model, double value,
                    Settings& settings) {
  const Parameter* parameter = FindParameterOrNull(method, name);
  if (parameter == nullptr) {
    return InvalidArgument("merge method " + std::string(method.name) + " has no parameter " + std::string(name) +
                           ": it has " + ParameterNames(method));
  }
  const bool is_whole = parameter->kind == ParameterKind::kNumber || std::floor(value) == value;
  if (!std::isfinite(value) || value < parameter->least || value > parameter->most || !is_whole) {
    return InvalidArgument("parameter " + std::string(name) + " of merge method " + std::string(method.name) + " is " +
                           Number(value) + ": it must be " + (is_whole ? "" : "a whole number ") + "from " +
                           Number(parameter->least) + " to " + Number(parameter->most));
  }
  DF_CHECK(!model || *model < settings.weights.size());
  Assign(name, model, value, settings);
  return Status::Ok();
}

Result<Report> Merge(ThreadPool& pool, const Method& method, const TensorGroup& group, const Settings& settings,
                     const Sink& sink) {
  DF_RETURN_IF_ERROR(CheckGroup(method, group, settings));
  Result<Report> merged = method.merge(pool, group, settings, sink);
  const bool is_named = merged.ok() || merged.status().message().starts_with("tensor ");
  return is_named ? std::move(merged) : merged.status().Annotate("tensor " + group.name);
}

}  // namespace df::merge
