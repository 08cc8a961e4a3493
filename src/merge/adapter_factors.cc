#include "merge/adapter_factors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

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

Status ReadPair(const StoredFactors& source, std::optional<double> squared_norm, FactorPair& pair) {
  pair.a = Mat<float>(source.rank(), source.d_in());
  pair.b = Mat<float>(source.d_out(), source.rank());
  ReadInto(source, {pair.a.Row(0), source.a.elements()}, {pair.b.Row(0), source.b.elements()});
  if (squared_norm) {
    pair.squared_norm = *squared_norm;
  } else {
    // A value that is not finite, in either, makes the norm so: no square or product of others can take it away.
    const double squares = linalg::SumOfSquares(pair.a.view()) + linalg::SumOfSquares(pair.b.view());
    pair.squared_norm = std::isfinite(squares) ? SquaredNormOf(pair) : squares;
  }
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

double InnerProduct(const FactorViews& first, const FactorViews& second) {
  DF_CHECK(first.b.rows == second.b.rows && first.a.cols == second.a.cols);
  Mat<float> b(first.a.rows, second.a.rows), a(first.a.rows, second.a.rows);
  linalg::AddTransposedProduct(first.b, second.b, b.view());
  linalg::AddProductTransposed(first.a, second.a, a.view());
  double sum = 0;
  for (size_t i = 0; i < a.rows() * a.cols(); ++i) sum += double{a.view().data[i]} * double{b.view().data[i]};
  return sum;
}

double InnerProduct(const FactorPair& first, const FactorPair& second) {
  return InnerProduct(FactorViews{first.a.view(), first.b.view()}, FactorViews{second.a.view(), second.b.view()});
}

Result<std::vector<StoredFactors>> ListFactors(const PeftAdapter& adapter) {
  DF_ASSIGN_OR_RETURN(const auto parts, ListAdapterParts(adapter.file()));
  const PeftConfig& config = adapter.config();
  if (const Status kept = CheckPromises(config, parts); !kept.ok()) return kept.Annotate(adapter.directory());
  if (const std::string reason = WhyNotMerged(adapter); !reason.empty()) {
    return Unsupported(adapter.directory() + " cannot be merged: it has " + reason);
  }
  std::vector<StoredFactors> stored;
  for (const auto& [path, module] : parts) {
    const TensorView& a = *module.ViewOrNull(AdapterPart::kA);
    const TensorView& b = *module.ViewOrNull(AdapterPart::kB);
    DF_RETURN_IF_ERROR(CheckModule(config, path, a, b));
    stored.push_back({.path = path, .a = a, .b = b, .scale = config.ScaleOf(path)});
    if (!std::isfinite(stored.back().scale)) {
      return InvalidArgument("the scale of module " + Quoted(path) + " is not finite");
    }
  }
  return stored;
}

DType WidestType(std::span<const StoredFactors> stored) {
  DType widest = DType::kF16;
  for (const StoredFactors& factors : stored) {
    for (const DType dtype : {factors.a.dtype, factors.b.dtype}) {
      if (dtype == DType::kF32 || widest == DType::kF16) widest = dtype;
    }
  }
  return widest;
}

void ReadInto(const StoredFactors& stored, std::span<float> a, std::span<float> b) {
  ReadFloats(stored.a, 0, a);
  ReadFloats(stored.b, 0, b);
  const auto scale = static_cast<float>(stored.scale);
  if (scale == 1) return;
  for (float& value : b) value *= scale;
}

Result<AdapterFactors> ReadFactors(ThreadPool& pool, const PeftAdapter& adapter,
                                   std::span<const double> squared_norms) {
  DF_ASSIGN_OR_RETURN(const std::vector<StoredFactors> sources, ListFactors(adapter));
  DF_CHECK(squared_norms.empty() || squared_norms.size() == sources.size());
  AdapterFactors factors{.modules = {}, .dtype = WidestType(sources)};
  std::vector<FactorPair*> pairs;
  for (const StoredFactors& source : sources) pairs.push_back(&factors.modules[source.path]);
  DF_RETURN_IF_ERROR(EachModule(pool, sources.size(), [&](size_t i) {
    return ReadPair(sources[i], squared_norms.empty() ? std::nullopt : std::optional(squared_norms[i]), *pairs[i]);
  }));
  DF_RETURN_IF_ERROR(adapter.file().file().CheckIntact());
  return factors;
}

std::vector<double> SquaredNormsOf(const AdapterFactors& factors) {
  std::vector<double> squares;
  for (const auto& [path, pair] : factors.modules) squares.push_back(pair.squared_norm);
  return squares;
}

}  // namespace df
