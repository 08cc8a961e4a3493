#include "tools/plan.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "base/json.h"
#include "kernels/attention.h"
#include "model/bind.h"
#include "model/kv_pool.h"
#include "tools/plan_code.h"

namespace df::tools {
namespace {

constexpr uint64_t kMaxVariants = 10'000;  // with which every sum of bytes stays below 2^53
constexpr uint64_t kMaxTokens = uint64_t{1} << 40;
constexpr uint64_t kVectorBytes = sizeof(float);  // of an element of a norm or bias in memory

// Block formats of 32 weights with a scale of 16 bits, as llama.cpp's Q8_0 and Q4_0 are; vectors stay f32.
struct CopyFormat {
  const char* name;
  double bits;
};
constexpr std::array<CopyFormat, 3> kCopies = {{{"bf16", 16}, {"8-bit", 8.5}, {"4-bit", 4.5}}};

std::string Number(double value) {
  std::array<char, 64> text = {};
  std::snprintf(text.data(), text.size(), value == std::floor(value) ? "%.0f" : "%.6g", value);
  return text.data();
}

// "a 1 + b 2": parts of a sum that are not 0.
std::string Sum(const std::vector<std::pair<const char*, double>>& parts) {
  std::string text;
  for (const auto& [what, value] : parts) {
    if (value != 0) text += (text.empty() ? "" : " + ") + std::string(what) + " " + Number(value);
  }
  return text.empty() ? "0" : text;
}

// Weights of one model, in elements and in bytes of one form.
struct Parts {
  double matrices = 0, embedding = 0, head = 0, vectors = 0;

  double all() const { return matrices + embedding + head + vectors; }
  std::string Text() const {
    return Sum({{"matrices", matrices}, {"embedding", embedding}, {"head", head}, {"norms and biases", vectors}});
  }
  double& Of(SlotKind kind) {
    switch (kind) {
      case SlotKind::kMatrix: return matrices;
      case SlotKind::kEmbedding: return embedding;
      case SlotKind::kHead: return head;
      case SlotKind::kVector: break;
    }
    return vectors;
  }
};

// `bytes(slot)` summed by kind.
template <typename BytesOfSlot>
Parts Measure(const std::vector<Slot>& slots, const BytesOfSlot& bytes) {
  Parts parts;
  for (const Slot& slot : slots) parts.Of(slot.kind) += static_cast<double>(bytes(slot));
  return parts;
}

// Whether compress reads a text for it.
bool TakesInputs(const PlannedCode& code) {
  return code.kind == PlannedKind::kSigns || code.kind == PlannedKind::kLowRank || code.kind == PlannedKind::kBits;
}

class Planner {
 public:
  Planner(const ModelConfig& config, const PlanOptions& options)
      : options_(options),
        tied_(config.tied_head),
        element_bytes_(config.dtype ? DTypeBytes(*config.dtype) : 2),
        slots_(ListSlots(config, tied_)),
        block_bytes_(static_cast<double>(KvPool::BlockBytes(config, options.kv_dtype))) {
    parameters_ = Measure(slots_, [](const Slot& slot) { return slot.d_out * slot.d_in; });
    stored_ = Measure(slots_, [&](const Slot& slot) { return slot.d_out * slot.d_in * element_bytes_; });
    resident_ = Measure(slots_, [&](const Slot& slot) {
      return slot.IsVector() ? slot.d_out * kVectorBytes : PackedMatrixBytes(ShapeOf(slot));
    });
    const double tokens = static_cast<double>(kernels::kKvBlockTokens);
    const double n_blocks = std::ceil(static_cast<double>(options.context_tokens) / tokens);
    kv_needed_ = static_cast<double>(options.n_sequences) * n_blocks * block_bytes_;
    kv_formula_ = Number(static_cast<double>(options.n_sequences)) + " sequences * ceil(" +
                  Number(static_cast<double>(options.context_tokens)) + " tokens / " + Number(tokens) + ") blocks * " +
                  Number(block_bytes_);
    room_ = static_cast<double>(options.memory_bytes) - static_cast<double>(options.reserve_bytes);
  }

  PlanRow Model(const ModelConfig& config) const {
    PlanRow row{.name = config.model_type, .figures = {}};
    Add(row, "parameters", parameters_.all(), PlanUnit::kCount, parameters_.Text());
    Add(row, "base_bytes", stored_.all(), PlanUnit::kBytes,
        Number(parameters_.all()) + " parameters * " + Number(static_cast<double>(element_bytes_)) + " bytes");
    Add(row, "base_memory_bytes", resident_.all(), PlanUnit::kBytes,
        "matrices in tiles of 32 rows, norms and biases in f32: " + resident_.Text());
    Add(row, "kv_bytes_per_token", block_bytes_ / static_cast<double>(kernels::kKvBlockTokens), PlanUnit::kBytes,
        "2 (keys, values) * " + Number(static_cast<double>(config.n_layers)) + " layers * " +
            Number(static_cast<double>(config.n_kv_heads)) + " heads * " +
            Number(static_cast<double>(config.head_dim)) + " * " +
            Number(static_cast<double>(DTypeBytes(options_.kv_dtype))) + " bytes");
    Add(row, "kv_needed_bytes", kv_needed_, PlanUnit::kBytes, kv_formula_);
    Add(row, "token_bytes", BaseRead(), PlanUnit::kBytes, "a decoded token of the base alone: " + BaseReadText());
    Add(row, "token_kv_bytes",
        static_cast<double>(options_.context_tokens) * block_bytes_ / static_cast<double>(kernels::kKvBlockTokens),
        PlanUnit::kBytes,
        "besides, the keys and values of " + Number(static_cast<double>(options_.context_tokens)) +
            " tokens before it: tokens * kv_bytes_per_token");
    return row;
  }

  PlanRow Code(const PlannedCode& code, const PlannedCode& vocabulary) const {
    const Parts stored = PartsOf(code, vocabulary, /*resident=*/false);
    const Parts resident = PartsOf(code, vocabulary, /*resident=*/true);
    PlanRow row{.name = code.name, .figures = {}};
    Add(row, "delta_bytes", stored.all(), PlanUnit::kBytes, stored.Text() + "; a matrix: " + StoredFormula(code));
    Add(row, "bits_per_weight", 8 * stored.all() / parameters_.all(), PlanUnit::kBits,
        "8 * delta_bytes / " + Number(parameters_.all()) + " parameters");
    Add(row, "times_smaller", stored_.all() / std::max(stored.all(), 1.0), PlanUnit::kRatio,
        "base_bytes / delta_bytes = " + Number(stored_.all()) + " / " + Number(stored.all()));
    Add(row, "delta_memory_bytes", resident.all(), PlanUnit::kBytes,
        "rows padded to 32, scales in f32: " + resident.Text());
    AddFamily(row, stored.all(), resident.all());
    AddFit(row, {.fixed = resident_.all(),
                 .each = resident.all(),
                 .fixed_text = "base_memory_bytes ",
                 .each_text = "delta_memory_bytes"});
    AddLoads(row, stored.all());
    AddReads(row, resident, code, vocabulary);
    return row;
  }

  PlanRow Copy(const CopyFormat& format) const {
    const double weights = parameters_.all() - parameters_.vectors;
    const double vector_bytes = format.bits == 16 ? 2 : kVectorBytes;
    const double bytes = weights * format.bits / 8 + parameters_.vectors * vector_bytes;
    PlanRow row{.name = format.name, .figures = {}};
    Add(row, "copy_bytes", bytes, PlanUnit::kBytes,
        Number(weights) + " weights * " + Number(format.bits) + " / 8 + " + Number(parameters_.vectors) +
            " of norms and biases * " + Number(vector_bytes));
    Add(row, "family_bytes", n() * bytes, PlanUnit::kBytes, n_text() + " copies * copy_bytes " + Number(bytes));
    AddFit(row, {.fixed = 0, .each = bytes, .fixed_text = "", .each_text = "copy_bytes"});
    AddLoads(row, bytes);
    const double read = (BaseReadParameters() * format.bits / 8) + parameters_.vectors * vector_bytes;
    Add(row, "token_bytes", read, PlanUnit::kBytes,
        "what a token multiplies with (matrices, head): " + Number(BaseReadParameters()) + " * " + Number(format.bits) +
            " / 8 + norms and biases " + Number(parameters_.vectors * vector_bytes));
    Add(row, "step_bytes", n() * read, PlanUnit::kBytes,
        "a token in each of " + n_text() + " engines: " + n_text() + " * token_bytes");
    return row;
  }

 private:
  struct Demand {
    double fixed = 0, each = 0;
    std::string fixed_text, each_text;
  };

  static void Add(PlanRow& row, std::string name, double value, PlanUnit unit, std::string formula) {
    row.figures.push_back({.name = std::move(name), .value = value, .unit = unit, .formula = std::move(formula)});
  }

  double n() const { return static_cast<double>(options_.n_variants); }
  std::string n_text() const { return Number(n()); }
  WeightShape ShapeOf(const Slot& slot) const {
    return {.d_out = slot.d_out, .d_in = slot.d_in, .element_bytes = element_bytes_};
  }

  // A delta's parts. Bits a weight are of everything, norms and vocabulary too; an adapter leaves those alone.
  Parts PartsOf(const PlannedCode& code, const PlannedCode& vocabulary, bool resident) const {
    const PlannedCode same{.name = "same", .kind = PlannedKind::kSame};
    const auto bytes = resident ? &ResidentBytes : &StoredBytes;
    return Measure(slots_, [&](const Slot& slot) -> uint64_t {
      if (code.kind == PlannedKind::kBits || slot.kind == SlotKind::kMatrix) return bytes(code, ShapeOf(slot));
      if (code.is_adapter) return 0;
      if (slot.IsVector()) return slot.d_out * (resident ? kVectorBytes : element_bytes_);
      // No text says what an embedding that is not the head is multiplied with, and none is read for exact matrices.
      const bool is_plain = (slot.kind == SlotKind::kEmbedding && !tied_) || !TakesInputs(code);
      PlannedCode of_slot = vocabulary;
      if (is_plain) of_slot.scale_bytes = kPlainScaleBytes;
      return bytes(of_slot, ShapeOf(slot));
    });
  }

  // Elements of the matrices that every token is multiplied with.
  double BaseReadParameters() const {
    return parameters_.matrices + (tied_ ? parameters_.embedding : parameters_.head);
  }
  double HeadBytes() const { return tied_ ? resident_.embedding : resident_.head; }
  double BaseRead() const { return resident_.matrices + HeadBytes() + resident_.vectors; }
  std::string BaseReadText() const {
    return Sum({{"matrices", resident_.matrices}, {"head", HeadBytes()}, {"norms and biases", resident_.vectors}});
  }

  void AddFamily(PlanRow& row, double stored, double resident) const {
    const double family = stored_.all() + n() * stored;
    Add(row, "family_bytes", family, PlanUnit::kBytes,
        "on disk: base_bytes " + Number(stored_.all()) + " + " + n_text() + " * delta_bytes " + Number(stored));
    Add(row, "family_memory_bytes", resident_.all() + n() * resident, PlanUnit::kBytes,
        "base_memory_bytes " + Number(resident_.all()) + " + " + n_text() + " * delta_memory_bytes " +
            Number(resident));
    Add(row, "saved_share", 1 - family / (n() * stored_.all()), PlanUnit::kRatio,
        "1 - family_bytes / (" + n_text() + " * base_bytes)");
  }

  void AddFit(PlanRow& row, const Demand& demand) const {
    if (options_.memory_bytes == 0) return;
    const std::string memory = Number(static_cast<double>(options_.memory_bytes)) + " memory - " +
                               Number(static_cast<double>(options_.reserve_bytes)) + " reserve" +
                               (demand.fixed > 0 ? " - " + demand.fixed_text + Number(demand.fixed) : "");
    const double left = room_ - demand.fixed - kv_needed_;
    Add(row, "fit_variants", demand.each > 0 ? std::max(std::floor(left / demand.each), 0.0) : 0, PlanUnit::kCount,
        "floor((" + memory + " - kv_needed_bytes " + Number(kv_needed_) + ") / " + demand.each_text + " " +
            Number(demand.each) + ")");
    const double free = room_ - demand.fixed - n() * demand.each;
    const double tokens = static_cast<double>(kernels::kKvBlockTokens);
    Add(row, "kv_left_tokens", std::max(std::floor(free / block_bytes_), 0.0) * tokens, PlanUnit::kTokens,
        "floor((" + memory + " - " + n_text() + " * " + demand.each_text + ") / " + Number(block_bytes_) +
            " bytes a block) * " + Number(tokens) + " tokens; 0 when they do not fit");
  }

  void AddLoads(PlanRow& row, double bytes) const {
    for (const Medium& medium : options_.media) {
      Add(row, "load_seconds_" + medium.name, bytes / medium.bytes_per_second, PlanUnit::kSeconds,
          Number(bytes) + " bytes / " + Number(medium.bytes_per_second * 1e-9) + " GB/s");
    }
  }

  // Raw weights stand in for the base's, all else is read beside them.
  void AddReads(PlanRow& row, const Parts& resident, const PlannedCode& code, const PlannedCode& vocabulary) const {
    const bool own_matrices = code.kind == PlannedKind::kRaw;
    const bool own_head = vocabulary.kind == PlannedKind::kRaw && !code.is_adapter && code.kind != PlannedKind::kBits;
    const double own = resident.matrices + (tied_ ? resident.embedding : resident.head) + resident.vectors;
    const double shared = (own_matrices ? 0 : resident_.matrices) + (own_head ? 0 : HeadBytes()) +
                          (resident.vectors > 0 ? 0 : resident_.vectors);
    const std::string shared_text = Sum({{"base's matrices", own_matrices ? 0 : resident_.matrices},
                                         {"base's head", own_head ? 0 : HeadBytes()},
                                         {"base's norms", resident.vectors > 0 ? 0 : resident_.vectors}});
    Add(row, "token_bytes", shared + own, PlanUnit::kBytes,
        "one variant's token alone: " + shared_text + " + its own matrices, head and norms " + Number(own));
    Add(row, "token_ratio", (shared + own) / BaseRead(), PlanUnit::kRatio,
        "token_bytes / the base's " + Number(BaseRead()));
    Add(row, "step_bytes", shared + n() * own, PlanUnit::kBytes,
        "a token of each of " + n_text() + " variants in one batch: " + shared_text + " + " + n_text() + " * " +
            Number(own));
    Add(row, "step_ratio", (shared + n() * own) / BaseRead(), PlanUnit::kRatio,
        "step_bytes / the base's " + Number(BaseRead()));
  }

  const PlanOptions& options_;
  const bool tied_;
  const uint64_t element_bytes_;
  const std::vector<Slot> slots_;
  const double block_bytes_;
  Parts parameters_, stored_, resident_;
  double kv_needed_ = 0, room_ = 0;
  std::string kv_formula_;
};

Status CheckOptions(const PlanOptions& options) {
  if (options.n_variants == 0 || options.n_variants > kMaxVariants) {
    return InvalidArgument("variants must be 1 to " + std::to_string(kMaxVariants) + ", got " +
                           std::to_string(options.n_variants));
  }
  if (options.context_tokens == 0 || options.context_tokens > kMaxTokens || options.n_sequences == 0 ||
      options.n_sequences > kMaxTokens / options.context_tokens) {
    return InvalidArgument("context and sequences must be at least 1 and their product at most " +
                           std::to_string(kMaxTokens));
  }
  for (const Medium& medium : options.media) {
    if (medium.name.empty() || !(medium.bytes_per_second >= 1) || medium.bytes_per_second > 1e15) {
      return InvalidArgument("medium \"" + medium.name + "\" needs a name and a speed of 1 byte/s to 10^6 GB/s");
    }
  }
  return Status::Ok();
}

}  // namespace

std::vector<Medium> DefaultMedia() {
  return {{"page_cache", 1.0e9, "measured on two cores, digest and packing included (docs/store.md)"},
          {"sata_ssd", 0.55e9, "6 Gbit/s less its coding"},
          {"nvme_gen4", 7.0e9, "four lanes of PCIe 4"},
          {"nvme_gen5", 14.0e9, "four lanes of PCIe 5"},
          {"ethernet_10g", 1.25e9, "10 Gbit/s"}};
}

const Figure* PlanRow::FindOrNull(const std::string& figure) const {
  const auto found = std::find_if(figures.begin(), figures.end(), [&](const Figure& f) { return f.name == figure; });
  return found == figures.end() ? nullptr : &*found;
}

const char* UnitName(PlanUnit unit) {
  switch (unit) {
    case PlanUnit::kBytes: return "bytes";
    case PlanUnit::kTokens: return "tokens";
    case PlanUnit::kCount: return "count";
    case PlanUnit::kSeconds: return "seconds";
    case PlanUnit::kRatio: return "ratio";
    case PlanUnit::kBits: return "bits";
  }
  return "";
}

Result<Plan> MakePlan(const ModelConfig& config, const PlanOptions& options) {
  DF_RETURN_IF_ERROR(CheckOptions(options));
  const uint64_t scale_bytes = options.is_fitted ? kFittedScaleBytes : kPlainScaleBytes;
  DF_ASSIGN_OR_RETURN(const PlannedCode vocabulary, ParsePlannedCode(options.embeddings, scale_bytes));
  const Planner planner(config, options);
  Plan plan = {.model = planner.Model(config), .codes = {}, .copies = {}};
  for (const std::string& name : options.codes) {
    DF_ASSIGN_OR_RETURN(const PlannedCode code, ParsePlannedCode(name, scale_bytes));
    plan.codes.push_back(planner.Code(code, vocabulary));
  }
  for (const CopyFormat& format : kCopies) plan.copies.push_back(planner.Copy(format));
  return plan;
}

namespace {

// Whole numbers as such: 17179869184 and not 1.7179869184e10.
Json ValueOf(const Figure& figure) {
  const bool is_whole = figure.value >= 0 && figure.value < 0x1p53 && figure.value == std::floor(figure.value);
  const bool counts = figure.unit != PlanUnit::kRatio && figure.unit != PlanUnit::kSeconds;
  return is_whole && counts ? Json(static_cast<uint64_t>(figure.value)) : Json(figure.value);
}

Json ToJson(const PlanRow& row) {
  Json figures = Json::object();
  for (const Figure& figure : row.figures) {
    figures[figure.name] = {{"value", ValueOf(figure)}, {"unit", UnitName(figure.unit)}, {"formula", figure.formula}};
  }
  return {{"name", row.name}, {"figures", std::move(figures)}};
}

}  // namespace

Json ToJson(const Plan& plan) {
  Json json = {{"model", ToJson(plan.model)}, {"codes", Json::array()}, {"copies", Json::array()}};
  for (const PlanRow& row : plan.codes) json["codes"].push_back(ToJson(row));
  for (const PlanRow& row : plan.copies) json["copies"].push_back(ToJson(row));
  return json;
}

}  // namespace df::tools
