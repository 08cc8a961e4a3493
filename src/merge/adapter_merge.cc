#include "merge/adapter_merge.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "base/float16.h"
#include "format/message.h"
#include "linalg/products.h"
#include "linalg/products64.h"
#include "merge/adapter_similarity.h"
#include "merge/each_module.h"
#include "merge/factor_span.h"

namespace df {
namespace {

// One module on its way. A part that lacks it is null.
struct ModuleWork {
  std::string path;
  const FactorPair* slot = nullptr;
  const FactorPair* added = nullptr;
  FactorPair* merged = nullptr;
  size_t rank = 0;
  std::optional<FactorSpan> span = {};  // its Gram matrices alone once the factors are cut
  CoreSvd svd = {};                     // of the target
  double energy = 0, discarded_energy = 0;
  double lost = 0, moved = 0, added_error = 0;  // squares

  size_t n_parts() const { return (slot != nullptr ? 1 : 0) + (added != nullptr ? 1 : 0); }
  // The core that gives the slot's part the first weight, the added one's the second.
  Mat<double> Core(double of_slot, double of_added) const {
    std::array<double, 2> weights = {of_slot, of_added};
    const size_t first = slot != nullptr ? 0 : 1;
    return span->Weighted(std::span(weights).subspan(first, n_parts()));
  }
};

std::vector<ModuleWork> UnionOf(const AdapterFactors& slot, const AdapterFactors& added, size_t rank,
                                AdapterFactors& merged) {
  for (const AdapterFactors* from : {&slot, &added}) {
    for (const auto& [path, pair] : from->modules) merged.modules.try_emplace(path);
  }
  std::vector<ModuleWork> work;
  for (auto& [path, pair] : merged.modules) {
    ModuleWork& module = work.emplace_back(ModuleWork{.path = path, .merged = &pair});
    if (const auto found = slot.modules.find(path); found != slot.modules.end()) module.slot = &found->second;
    if (const auto found = added.modules.find(path); found != added.modules.end()) module.added = &found->second;
    for (const FactorPair* part : {module.slot, module.added}) {
      if (rank > 0) {
        module.rank = rank;
      } else if (part != nullptr) {
        module.rank = std::max(module.rank, part->rank());
      }
    }
  }
  return work;
}

// How many of the descending values make the leading block: up to where their running share of the sum passes alpha.
size_t LeadingBlock(const std::vector<double>& values, double alpha) {
  double sum = 0, running = 0;
  for (const double value : values) sum += value;
  for (size_t i = 0; i < values.size(); ++i) {
    running += values[i];
    if (running > alpha * sum) return i;
  }
  return values.size();
}

// Takes out of `core` the part of D that lies in M's leading block and on its diagonal. In coordinates of the span, of
// which M's are the first: P(D) = U P V^T with P = U^T D V where i, j < block or i = j.
Status Project(const ModuleWork& module, double alpha, Mat<double>& core) {
  if (module.n_parts() < 2) return Status::Ok();
  const FactorSpan& span = *module.span;
  DF_ASSIGN_OR_RETURN(const CoreSvd slot, span.Svd(module.Core(1, 0).view()));
  const size_t block = LeadingBlock(slot.values, alpha);
  const Mat<double> left = linalg::TransposedProduct(slot.left.view(), span.gram_b().view());    // U^T B
  const Mat<double> right = linalg::ProductTransposed(span.gram_a().view(), slot.right.view());  // A V
  const Mat<double> added = linalg::Product(left.view(), module.Core(0, 1).view());
  Mat<double> inner = linalg::Product(added.view(), right.view());
  for (size_t i = 0; i < inner.rows(); ++i) {
    for (size_t j = 0; j < inner.cols(); ++j) {
      if (i != j && (i >= block || j >= block)) inner.Row(i)[j] = 0;
    }
  }
  const Mat<double> back = linalg::Product(linalg::Product(slot.left.view(), inner.view()).view(), slot.right.view());
  for (size_t i = 0; i < span.size() * span.size(); ++i) core.view().data[i] -= back.view().data[i];
  return Status::Ok();
}

// The module's target cut to its rank: the factors, not scaled by kOpcm's length yet.
Status Cut(const SlotHistory& history, const AdapterMergeOptions& options, ModuleWork& module) {
  std::array<const FactorPair*, 2> parts = {module.slot, module.added};
  const size_t first = module.slot != nullptr ? 0 : 1;
  module.span.emplace(std::span(parts).subspan(first, module.n_parts()));
  const double n = static_cast<double>(history.n_merged) + 1;
  const bool is_mean = options.rule == AdapterRule::kMean;
  Mat<double> core = is_mean ? module.Core(1 - 1 / n, 1 / n) : module.Core(history.opcm_scale, 1);
  if (!is_mean) DF_RETURN_IF_ERROR(Project(module, options.alpha, core));
  DF_ASSIGN_OR_RETURN(module.svd, module.span->Svd(core.view()));
  for (size_t i = 0; i < module.svd.values.size(); ++i) {
    const double square = module.svd.values[i] * module.svd.values[i];
    module.energy += square;
    if (i >= module.rank) module.discarded_energy += square;
  }
  *module.merged = module.span->Factors(module.svd, module.rank);
  module.span->DropFactors();
  return Status::Ok();
}

float Stored(float value, DType dtype) {
  switch (dtype) {
    case DType::kBf16: return ToFloat(ToBf16(value));
    case DType::kF16: return ToFloat(ToF16(value));
    default: return value;
  }
}

// Rounds to the stored type; |rounded - before|.
Result<double> Round(DType dtype, MatView<float> values) {
  double error = 0;
  for (size_t row = 0; row < values.rows; ++row) {
    for (float& value : values.RowSpan(row)) {
      const float stored = Stored(value, dtype);
      error += (double{stored} - double{value}) * (double{stored} - double{value});
      value = stored;
    }
  }
  if (std::isfinite(error)) return std::sqrt(error);
  return FailedPrecondition("a merged factor is too large for " + std::string(DTypeName(dtype)) +
                            ": store the pool as f32");
}

// Scales, rounds, and measures what came out against what went in. A product's error by its factors':
// |(b + db)(a + da) - b a| <= |db| |a| + |b| |da| + |db| |da|; f32 products of k terms round by k 2^-24 of |B| |A|.
Status Finish(DType dtype, double scale, ModuleWork& module) {
  FactorPair& pair = *module.merged;
  for (float& value : std::span(pair.b.Row(0), pair.d_out() * pair.rank())) value *= static_cast<float>(scale);
  const double norm_a = std::sqrt(linalg::SumOfSquares(pair.a.view()));
  const double norm_b = std::sqrt(linalg::SumOfSquares(pair.b.view()));
  DF_ASSIGN_OR_RETURN(const double error_a, Round(dtype, pair.a.view()));
  DF_ASSIGN_OR_RETURN(const double error_b, Round(dtype, pair.b.view()));
  pair.squared_norm = SquaredNormOf(pair);
  double rounding = error_b * norm_a + norm_b * error_a + error_b * error_a;
  rounding += 2 * static_cast<double>(module.span->size()) * 0x1.0p-24 * norm_a * norm_b;

  Mat<double> cut = FactorSpan::CutCore(module.svd, module.rank);
  const auto distance = [&](double of_slot, double of_added) {
    Mat<double> core = module.Core(-of_slot, -of_added);
    for (size_t i = 0; i < core.rows() * core.cols(); ++i) core.view().data[i] += scale * cut.view().data[i];
    const double exact = std::sqrt(module.span->SquaredNorm(core.view()));
    return (exact + rounding) * (exact + rounding);
  };
  const double cut_off = scale * std::sqrt(module.discarded_energy);
  module.lost = (cut_off + rounding) * (cut_off + rounding);
  module.moved = distance(1, 0);
  module.added_error = distance(0, 1);
  module.span.reset();
  return Status::Ok();
}

Status Annotated(const Status& status, const ModuleWork& module) {
  return status.ok() ? status : status.Annotate("module " + Quoted(module.path));
}

double SumOver(const std::vector<ModuleWork>& work, double ModuleWork::* field) {
  double sum = 0;
  for (const ModuleWork& module : work) sum += module.*field;
  return sum;
}

}  // namespace

Result<AdapterMerge> MergeAdapter(ThreadPool& pool, const AdapterFactors& slot, const SlotHistory& history,
                                  const AdapterFactors& added, const AdapterMergeOptions& options) {
  DF_CHECK(history.n_merged >= 1);
  DF_RETURN_IF_ERROR(CheckSameBase(slot, added));
  AdapterMerge merge;
  merge.merged.dtype = options.dtype;
  std::vector<ModuleWork> work = UnionOf(slot, added, options.rank, merge.merged);
  DF_RETURN_IF_ERROR(
      EachModule(pool, work.size(), [&](size_t i) { return Annotated(Cut(history, options, work[i]), work[i]); }));
  merge.energy = SumOver(work, &ModuleWork::energy);
  merge.discarded_energy = SumOver(work, &ModuleWork::discarded_energy);
  double scale = 1;
  if (options.rule == AdapterRule::kOpcm) {
    const double mean =
        (history.sum_of_norms + std::sqrt(added.SquaredNorm())) / (static_cast<double>(history.n_merged) + 1);
    merge.opcm_scale = mean > 0 && merge.energy > 0 ? std::sqrt(merge.energy) / mean : 1;
    scale = 1 / merge.opcm_scale;
    merge.energy *= scale * scale;
    merge.discarded_energy *= scale * scale;
  }
  DF_RETURN_IF_ERROR(EachModule(pool, work.size(),
                                [&](size_t i) { return Annotated(Finish(options.dtype, scale, work[i]), work[i]); }));
  merge.lost = std::sqrt(SumOver(work, &ModuleWork::lost));
  merge.moved = std::sqrt(SumOver(work, &ModuleWork::moved));
  merge.added_error = std::sqrt(SumOver(work, &ModuleWork::added_error));
  return merge;
}

Result<AdapterMerge> MeanOfAdapters(ThreadPool& pool, const std::vector<const AdapterFactors*>& adapters, size_t rank) {
  AdapterMerge merge;
  std::map<std::string, std::vector<const FactorPair*>> parts;
  for (const AdapterFactors* adapter : adapters) {
    DF_RETURN_IF_ERROR(CheckSameBase(*adapters.front(), *adapter));
    for (const auto& [path, pair] : adapter->modules) parts[path].push_back(&pair);
  }
  std::vector<ModuleWork> work;
  for (const auto& [path, pairs] : parts) {
    work.push_back({.path = path, .merged = &merge.merged.modules[path], .rank = rank});
  }
  const double weight = 1 / static_cast<double>(adapters.size());
  DF_RETURN_IF_ERROR(EachModule(pool, work.size(), [&](size_t i) -> Status {
    ModuleWork& module = work[i];
    const std::vector<const FactorPair*>& pairs = parts.at(module.path);
    if (rank == 0) {
      for (const FactorPair* pair : pairs) module.rank = std::max(module.rank, pair->rank());
    }
    const FactorSpan span(pairs);
    const std::vector<double> weights(pairs.size(), weight);
    DF_ASSIGN_OR_RETURN(module.svd, span.Svd(span.Weighted(weights).view()));
    for (size_t j = 0; j < module.svd.values.size(); ++j) {
      const double square = module.svd.values[j] * module.svd.values[j];
      module.energy += square;
      if (j >= module.rank) module.discarded_energy += square;
    }
    *module.merged = span.Factors(module.svd, module.rank);
    module.merged->squared_norm = SquaredNormOf(*module.merged);
    return Status::Ok();
  }));
  merge.energy = SumOver(work, &ModuleWork::energy);
  merge.discarded_energy = SumOver(work, &ModuleWork::discarded_energy);
  return merge;
}

}  // namespace df
