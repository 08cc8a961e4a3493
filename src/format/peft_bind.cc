#include "format/peft_bind.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numeric>

#include "format/message.h"
#include "format/peft_promises.h"

namespace df {
namespace {

using Part = AdapterPart;

Status CheckFinite(const NamedTensor& tensor) {
  std::array<float, 1024> values;
  const size_t n = tensor.view.elements();
  for (size_t first = 0; first < n; first += values.size()) {
    const std::span<float> part = std::span<float>(values).first(std::min(values.size(), n - first));
    ReadFloats(tensor.view, first, part);
    for (size_t i = 0; i < part.size(); ++i) {
      if (std::isfinite(part[i])) continue;
      return Corrupt("adapter tensor " + Quoted(tensor.name) + " has a value that is not finite, element " +
                     std::to_string(first + i));
    }
  }
  return Status::Ok();
}

// A vocabulary that grows by a factor beyond this is a claim, not a model: 32 000 tokens have grown to 55 000.
constexpr size_t kMostVocabGrowth = 8;

// What becomes of one module.
class ModuleBinder {
 public:
  ModuleBinder(const PeftConfig& config, const BaseModule& module, const AdapterParts& parts, AdapterChanges& changes)
      : config_(config),
        module_(module),
        parts_(parts),
        changes_(changes),
        is_targeted_(config.Targets(module.path) || (config.ties_weights && module.kind == ModuleKind::kHead)),
        is_saved_(config.Saves(module.path)) {}

  Result<ModuleChange> Bind() {
    change_.weight.d_out = module_.d_out;
    change_.weight.d_in = module_.d_in;
    DF_RETURN_IF_ERROR(CheckPlaces());
    DF_RETURN_IF_ERROR(BindWeight());
    if (module_.kind != ModuleKind::kNorm) {
      DF_RETURN_IF_ERROR(BindTokens());
      DF_RETURN_IF_ERROR(BindFactors());
      DF_RETURN_IF_ERROR(CheckModulePromises(config_, module_.path, parts_));
      DF_RETURN_IF_ERROR(BindMagnitude());
      DF_RETURN_IF_ERROR(BindBias());
    }
    // Last: a sparse file may claim any size, the shapes bound what is read of it.
    for (const NamedTensor* tensor : parts_.tensors) {
      if (tensor != nullptr) DF_RETURN_IF_ERROR(CheckFinite(*tensor));
    }
    return std::move(change_);
  }

 private:
  bool Has(Part part) const { return parts_.OrNull(part) != nullptr; }
  const TensorView& View(Part part) const { return parts_.OrNull(part)->view; }
  bool IsTable() const { return module_.kind == ModuleKind::kEmbedding || module_.kind == ModuleKind::kHead; }
  std::string Name() const { return "module " + Quoted(module_.path); }

  Status Misplaced(Part part, const std::string& why) const {
    return Corrupt("adapter tensor " + Quoted(parts_.OrNull(part)->name) + ": " + why);
  }

  Status CheckShape(Part part, const Shape& expected, const std::string& meaning) const {
    if (View(part).shape == expected) return Status::Ok();
    return Misplaced(
        part, "has shape " + ToString(View(part).shape) + ", expected " + ToString(expected) + " (" + meaning + ")");
  }

  // Every stored part is one that the kind of module can have and that the config speaks of.
  Status CheckPlaces() const {
    const auto refuse = [this](std::initializer_list<Part> parts, const std::string& why) {
      for (const Part part : parts) {
        if (Has(part)) return Misplaced(part, why);
      }
      return Status::Ok();
    };
    if (module_.kind == ModuleKind::kNorm) {
      DF_RETURN_IF_ERROR(refuse({Part::kA, Part::kB, Part::kBBias, Part::kEmbeddingA, Part::kEmbeddingB,
                                 Part::kMagnitude, Part::kTokens, Part::kBias},
                                "a norm has no such part"));
    } else if (module_.kind == ModuleKind::kEmbedding) {
      if (Has(Part::kMagnitude))
        return Unsupported("adapter field \"use_dora\": DoRA on an embedding is not supported");
      DF_RETURN_IF_ERROR(refuse({Part::kA, Part::kB, Part::kBBias, Part::kBias}, "an embedding has no such part"));
    } else {
      DF_RETURN_IF_ERROR(refuse({Part::kEmbeddingA, Part::kEmbeddingB}, Name() + " is no embedding"));
      if (!IsTable()) DF_RETURN_IF_ERROR(refuse({Part::kTokens}, Name() + " has no tokens"));
      if (!module_.has_bias) DF_RETURN_IF_ERROR(refuse({Part::kBias}, Name() + " of the base has no bias"));
    }
    if (!is_targeted_) {
      DF_RETURN_IF_ERROR(
          refuse({Part::kA, Part::kB, Part::kEmbeddingA, Part::kEmbeddingB, Part::kBBias, Part::kMagnitude},
                 "its own target_modules leave " + Name() + " out"));
    }
    // Of embedding and head PEFT stores the base's own weight when the vocabulary or the targets ask for it.
    if (!is_saved_ && !is_targeted_ && !IsTable()) {
      DF_RETURN_IF_ERROR(refuse({Part::kWeight}, "its own modules_to_save leave " + Name() + " out"));
    }
    return Status::Ok();
  }

  Status BindWeight() {
    if (!Has(Part::kWeight)) {
      if (!is_saved_) return Status::Ok();
      return Corrupt("modules_to_save names " + Name() + ", but the adapter stores no weight of it");
    }
    const TensorView& weight = View(Part::kWeight);
    change_.weight.raw = weight;
    if (module_.kind == ModuleKind::kNorm) {
      change_.weight.d_out = 1;
      change_.weight.d_in = module_.d_out;
      return CheckShape(Part::kWeight, {module_.d_out}, "elements of the norm");
    }
    const bool resizes = IsTable() && weight.shape.rank() == 2 && weight.shape[0] > 0 &&
                         weight.shape[0] / kMostVocabGrowth <= module_.d_out;
    if (resizes) change_.weight.d_out = weight.shape[0];
    return CheckShape(Part::kWeight, {change_.weight.d_out, module_.d_in}, "d_out, d_in");
  }

  // Keeps `bytes` in the changes.
  TensorView Keep(DType dtype, const Shape& shape, Buffer<uint8_t> bytes) {
    const Buffer<uint8_t>& kept = changes_.turned.emplace_back(std::move(bytes));
    return {.dtype = dtype, .shape = shape, .bytes = {kept.data(), kept.size()}};
  }

  TensorView Transposed(const TensorView& view) {
    const size_t rows = view.shape[0], cols = view.shape[1], size = DTypeBytes(view.dtype);
    Buffer<uint8_t> bytes(view.bytes.size());
    for (size_t r = 0; r < rows; ++r) {
      for (size_t c = 0; c < cols; ++c) {
        std::memcpy(bytes.data() + (c * rows + r) * size, view.bytes.data() + (r * cols + c) * size, size);
      }
    }
    return Keep(view.dtype, {cols, rows}, std::move(bytes));
  }

  Status BindFactors() {
    if (!parts_.HasFactors()) return Status::Ok();
    const bool on_embedding = Has(Part::kEmbeddingA);
    const Part a = on_embedding ? Part::kEmbeddingA : Part::kA, b = on_embedding ? Part::kEmbeddingB : Part::kB;
    const size_t rank = config_.RankOf(module_.path);
    const size_t d_out = change_.weight.d_out, d_in = module_.d_in;
    if (on_embedding) {
      DF_RETURN_IF_ERROR(CheckShape(a, {rank, d_out}, "rank, vocabulary"));
      DF_RETURN_IF_ERROR(CheckShape(b, {d_in, rank}, "d_model, rank"));
    } else {
      DF_RETURN_IF_ERROR(CheckShape(a, {rank, d_in}, "rank, d_in"));
      DF_RETURN_IF_ERROR(CheckShape(b, {d_out, rank}, "d_out, rank"));
    }
    const auto scale = static_cast<float>(config_.ScaleOf(module_.path));
    if (!std::isfinite(scale)) return InvalidArgument("the scale of " + Name() + " is not finite");
    change_.weight.low_rank.push_back({.a = on_embedding ? Transposed(View(b)) : View(a),
                                       .b = on_embedding ? Transposed(View(a)) : View(b),
                                       .scale = scale});
    return Status::Ok();
  }

  Status BindMagnitude() {
    if (!Has(Part::kMagnitude)) return Status::Ok();
    change_.weight.magnitude = View(Part::kMagnitude);
    return CheckShape(Part::kMagnitude, {change_.weight.d_out}, "d_out");
  }

  Status BindBias() {
    if (Has(Part::kBBias)) {
      change_.added_bias = View(Part::kBBias);
      DF_RETURN_IF_ERROR(CheckShape(Part::kBBias, {change_.weight.d_out}, "d_out"));
    }
    if (!Has(Part::kBias)) {
      if (!is_saved_ || !module_.has_bias) return Status::Ok();
      return Corrupt("modules_to_save names " + Name() + ", but the adapter stores no bias of it");
    }
    change_.weight.bias = View(Part::kBias);
    return CheckShape(Part::kBias, {change_.weight.d_out}, "d_out");
  }

  Status BindTokens() {
    const TrainableTokens* tokens = IsTable() ? config_.TokensOrNull(module_.path) : nullptr;
    if (tokens == nullptr || tokens->index.empty()) {
      return Has(Part::kTokens) ? Misplaced(Part::kTokens, "trainable_token_indices leave " + Name() + " out")
                                : Status::Ok();
    }
    if (!Has(Part::kTokens)) {
      return Corrupt("trainable_token_indices names " + Name() +
                     ", but the adapter stores no trainable_tokens_delta of it");
    }
    DF_RETURN_IF_ERROR(CheckShape(Part::kTokens, {tokens->index.size(), module_.d_in}, "tokens, d_model"));
    const int32_t largest = *std::ranges::max_element(tokens->index);
    if (static_cast<size_t>(largest) >= change_.weight.d_out) {
      return InvalidArgument("adapter field \"trainable_token_indices\" has token " + std::to_string(largest) +
                             ", the vocabulary has " + std::to_string(change_.weight.d_out));
    }
    change_.weight.rows = Sorted(*tokens, View(Part::kTokens));
    return Status::Ok();
  }

  ReplacedRows Sorted(const TrainableTokens& tokens, const TensorView& values) {
    std::vector<size_t> order(tokens.index.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::sort(order, {}, [&](size_t i) { return tokens.index[i]; });
    const size_t row_bytes = module_.d_in * DTypeBytes(values.dtype);
    Buffer<uint8_t> bytes(values.bytes.size());
    ReplacedRows rows;
    for (size_t i = 0; i < order.size(); ++i) {
      rows.index.push_back(tokens.index[order[i]]);
      std::memcpy(bytes.data() + i * row_bytes, values.bytes.data() + order[i] * row_bytes, row_bytes);
    }
    rows.values = Keep(values.dtype, values.shape, std::move(bytes));
    return rows;
  }

  const PeftConfig& config_;
  const BaseModule& module_;
  const AdapterParts& parts_;
  AdapterChanges& changes_;
  bool is_targeted_;
  bool is_saved_;
  ModuleChange change_;
};

// Every name of trainable_token_indices is that of a module with tokens.
Status CheckTokenModules(const PeftConfig& config, const std::vector<BaseModule>& modules) {
  for (const TrainableTokens& tokens : config.trainable_tokens) {
    const bool found = std::ranges::any_of(modules, [&](const BaseModule& module) {
      const bool is_table = module.kind == ModuleKind::kEmbedding || module.kind == ModuleKind::kHead;
      return is_table && config.TokensOrNull(module.path) == &tokens;
    });
    if (found) continue;
    return Corrupt("adapter field \"trainable_token_indices\" names " + Quoted(tokens.module) +
                   ", which is neither the embedding nor the head of the base");
  }
  return Status::Ok();
}

}  // namespace

Result<AdapterChanges> BindAdapterParts(const PeftConfig& config, const std::map<std::string, AdapterParts>& parts,
                                        const std::vector<BaseModule>& modules) {
  DF_RETURN_IF_ERROR(CheckTokenModules(config, modules));
  AdapterChanges changes;
  size_t n_placed = 0;
  for (const BaseModule& module : modules) {
    const auto found = parts.find(module.path);
    const bool is_there = found != parts.end();
    n_placed += is_there ? 1 : 0;
    // A module that nothing is stored of may still be one that the config promises.
    if (!is_there && !config.Saves(module.path) && config.TokensOrNull(module.path) == nullptr) continue;
    const AdapterParts none;
    DF_ASSIGN_OR_RETURN(ModuleChange change,
                        ModuleBinder(config, module, is_there ? found->second : none, changes).Bind());
    changes.modules.emplace(module.path, std::move(change));
  }
  if (n_placed == parts.size()) return changes;
  for (const auto& [path, module] : parts) {
    const bool is_known = std::ranges::any_of(modules, [&path](const BaseModule& m) { return m.path == path; });
    if (!is_known) {
      return Corrupt("the adapter changes module " + Quoted(path) +
                     ", which is none of the base that an adapter may change");
    }
  }
  return changes;
}

}  // namespace df
