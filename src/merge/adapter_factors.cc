#include "merge/adapter_factors.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "format/message.h"
#include "format/peft_config.h"
#include "format/peft_promises.h"
#include "format/peft_tensors.h"
#include "linalg/products.h"
#include "linalg/products64.h"
#include "merge/each_module.h"

namespace df {
namespace {

struct PartReason {
  AdapterPart part;
  const char* reason;
};
constexpr std::array<PartReason, 7> kUnmerged = {{
    {AdapterPart::kBBias, "lora_bias"},
    {AdapterPart::kEmbeddingA, "factors of an embedding"},
    {AdapterPart::kEmbeddingB, "factors of an embedding"},
    {AdapterPart::kMagnitude, "DoRA"},
    {AdapterPart::kTokens, "trainable tokens"},
    {AdapterPart::kWeight, "a saved weight"},
    {AdapterPart::kBias, "a bias"},
}};

struct Source {
  std::string path;
  const TensorView* a = nullptr;
  const TensorView* b = nullptr;
  double scale = 1;
};

Status CheckModule(const PeftConfig& config, const std::string& path, const TensorView& a, const TensorView& b) {
  const std::string module = "module " + Quoted(path);
  if (!config.Targets(path)) return Corrupt(module + " is stored, but adapter_config.json does not target it");
  if (a.shape[0] != b.shape[1]) {
    return Corrupt(module + " has lora_A of rank " + std::to_string(a.shape[0]) + " and lora_B of rank " +
                   std::to_string(b.shape[1]));
  }
  if (a.shape[0] != config.RankOf(path)) {
    return Corrupt(module + " has rank " + std::to_string(a.shape[0]) + ", adapter_config.json gives it " +
                   std::to_string(config.RankOf(path)));
  }
  if (a.elements() == 0 || b.elements() == 0) return Corrupt(module + " has factors without elements");
  return Status::Ok();
}

Status ReadPair(const Source& source, FactorPair& pair) {
  pair.a = Mat<float>(source.a->shape[0], source.a->shape[1]);
  pair.b = Mat<float>(source.b->shape[0], source.b->shape[1]);
  ReadFloats(*source.a, 0, {pair.a.Row(0), source.a->elements()});
  const std::span<float> b(pair.b.Row(0), source.b->elements());
  ReadFloats(*source.b, 0, b);
  const auto scale = static_cast<float>(source.scale);
  for (float& value : b) value *= scale;
  // A value that is not finite, in either, makes the norm so: no square or product of others can take it away.
  const double squares = linalg::SumOfSquares(pair.a.view()) + linalg::SumOfSquares(pair.b.view());
  pair.squared_norm = std::isfinite(squares) ? SquaredNormOf(pair) : squares;
  if (std::isfinite(pair.squared_norm) && pair.squared_norm < 1e60) return Status::Ok();
  return Corrupt("module " + Quoted(source.path) + " has factors that are not finite, or whose product is not");
}

}  // namespace

double AdapterFactors::SquaredNorm() const {
  double sum = 0;
  for (const auto& [path, pair] : modules) sum += pair.squared_norm;
  return sum;
}

std::string WhyNotMerged(const PeftAdapter& adapter) {
  const auto parts = ListAdapterParts(adapter.file());
  if (!parts.ok()) return parts.status().message();
  if (!CheckPromises(adapter.config(), *parts).ok()) return "";  // ReadFactors says so
  for (const auto& [path, module] : *parts) {
    for (const auto& [part, reason] : kUnmerged) {
      if (module.OrNull(part) != nullptr) return std::string(reason) + " (" + Quoted(module.OrNull(part)->name) + ")";
    }
  }
  if (parts->size() > kMaxMergedModules) {
    return std::to_string(parts->size()) + " modules, merged are at most " + std::to_string(kMaxMergedModules);
  }
  return "";
}

double SquaredNormOf(const FactorPair& pair) {
  const Mat<double> b = linalg::Gram(pair.b.view(), linalg::GramOf::kColumns);
  const Mat<double> a = linalg::Gram(pair.a.view(), linalg::GramOf::kRows);
  double sum = 0;
  for (size_t i = 0; i < pair.rank() * pair.rank(); ++i) sum += a.view().data[i] * b.view().data[i];
  return std::isnan(sum) ? sum : std::max(sum, 0.0);
}

double InnerProduct(const FactorPair& first, const FactorPair& second) {
  DF_CHECK(first.d_out() == second.d_out() && first.d_in() == second.d_in());
  Mat<float> b(first.rank(), second.rank()), a(first.rank(), second.rank());
  linalg::AddTransposedProduct(first.b.view(), second.b.view(), b.view());
  linalg::AddProductTransposed(first.a.view(), second.a.view(), a.view());
  double sum = 0;
  for (size_t i = 0; i < first.rank() * second.rank(); ++i) {
    sum += double{a.view().data[i]} * double{b.view().data[i]};
  }
  return sum;
}

Result<AdapterFactors> ReadFactors(ThreadPool& pool, const PeftAdapter& adapter) {
  DF_ASSIGN_OR_RETURN(const auto parts, ListAdapterParts(adapter.file()));
  const PeftConfig& config = adapter.config();
  if (const Status kept = CheckPromises(config, parts); !kept.ok()) return kept.Annotate(adapter.directory());
  if (const std::string reason = WhyNotMerged(adapter); !reason.empty()) {
    return Unsupported(adapter.directory() + " cannot be merged: it has " + reason);
  }
  AdapterFactors factors{.modules = {}, .dtype = DType::kF16};
  std::vector<Source> sources;
  std::vector<FactorPair*> pairs;
  for (const auto& [path, module] : parts) {
    const TensorView& a = *module.ViewOrNull(AdapterPart::kA);
    const TensorView& b = *module.ViewOrNull(AdapterPart::kB);
    DF_RETURN_IF_ERROR(CheckModule(config, path, a, b));
    sources.push_back({.path = path, .a = &a, .b = &b, .scale = config.ScaleOf(path)});
    if (!std::isfinite(sources.back().scale)) {
      return InvalidArgument("the scale of module " + Quoted(path) + " is not finite");
    }
    pairs.push_back(&factors.modules[path]);
    for (const TensorView* view : {&a, &b}) {
      if (view->dtype == DType::kF32 || factors.dtype == DType::kF16) factors.dtype = view->dtype;
    }
  }
  DF_RETURN_IF_ERROR(EachModule(pool, sources.size(), [&](size_t i) { return ReadPair(sources[i], *pairs[i]); }));
  DF_RETURN_IF_ERROR(adapter.file().file().CheckIntact());
  return factors;
}

}  // namespace df
