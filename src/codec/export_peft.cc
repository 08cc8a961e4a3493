#include "codec/export_peft.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "base/atomic_file.h"
#include "base/json.h"
#include "codec/bound_variant.h"
#include "codec/decode.h"
#include "codec/low_rank.h"
#include "codec/model_card.h"
#include "codec/row_ops.h"
#include "format/safetensors.h"

namespace df {
namespace {

constexpr std::string_view kPrefix = "base_model.model.";
constexpr size_t kMaxPatterns = 256;  // that readers take (docs/formats/adapter.md)
constexpr size_t kRankStep = 8;       // kMaxCodedRank / 8 ranks of at most 7 projections are no more patterns than that

struct AdapterTensor {
  std::string name;
  TensorView view;
};

bool IsLowRankAlone(const LinearDelta& change) {
  return change.low_rank.size() == 1 && change.planes.empty() && !change.rows && !change.byte_rows && !change.raw;
}

class AdapterMaker {
 public:
  AdapterMaker(ThreadPool& pool, const ExportOptions& options, const BoundVariant& variant, ExportReport& report)
      : pool_(pool), options_(options), variant_(variant), report_(report) {}

  Status AddAll() {
    for (const BoundWeight& weight : variant_.weights) {
      if (weight.change.IsBase() && !BecomesHead(weight)) continue;
      DF_RETURN_IF_ERROR(Add(weight));
    }
    if (report_.n_factors > 0) return AddBiasesOfSaved();
    return FailedPrecondition("the delta has no matrix of low rank: there is no adapter to make of it");
  }

  Json Config() {
    const size_t step = NumberOfGroups(1) > kMaxPatterns ? kRankStep : 1;
    Json ranks = Json::object();
    for (const auto& [rank, patterns] : Groups(step)) {
      for (const std::string& pattern : patterns) ranks[pattern] = rank;
    }
    std::vector<std::string> targets;
    for (const auto& [module, rank] : ranks_) targets.push_back(module);
    for (auto& [module, rank] : ranks_) rank = Padded(rank, step);
    for (const auto& [module, rank] : ranks_) report_.largest_rank = std::max(report_.largest_rank, rank);
    Json config = {{"peft_type", "LORA"},
                   {"task_type", "CAUSAL_LM"},
                   {"base_model_name_or_path", options_.base_name},
                   {"r", report_.largest_rank},
                   {"lora_alpha", report_.largest_rank},
                   {"rank_pattern", ranks},
                   {"alpha_pattern", ranks},  // a scale of 1 everywhere
                   {"target_modules", targets},
                   {"modules_to_save", saved_},
                   {"bias", has_bias_ ? "all" : "none"},
                   {"lora_dropout", 0.0},
                   {"fan_in_fan_out", false},
                   {"inference_mode", true},
                   {"init_lora_weights", true},
                   {"use_dora", false},
                   {"use_rslora", false}};
    if (saved_.empty()) config["modules_to_save"] = nullptr;
    return config;
  }

  // After Config: factors have the rank it says.
  std::vector<AdapterTensor> Tensors() {
    for (auto& [module, factors] : factors_) {
      const size_t rank = ranks_.at(module);
      const std::string name = std::string(kPrefix) + module;
      Pad(rank, factors);
      tensors_.push_back({name + ".lora_A.weight", factors.a});
      tensors_.push_back({name + ".lora_B.weight", factors.b});
    }
    for (const AdapterTensor& tensor : tensors_) report_.bytes += tensor.view.bytes.size();
    return std::move(tensors_);
  }

 private:
  // The embedding, as the variant's head but not the base's.
  bool BecomesHead(const BoundWeight& weight) const {
    return weight.slot.kind == SlotKind::kEmbedding && variant_.tied && !variant_.base_tied;
  }

  Status Add(const BoundWeight& weight) {
    const std::string& name = weight.slot.name;
    if (weight.slot.IsVector()) return AddVector(weight);
    if (weight.slot.kind != SlotKind::kMatrix) return AddVocabulary(weight);
    if (weight.change.raw) {
      Save(ModuleOf(name), *weight.change.raw);
      return Status::Ok();
    }
    if (IsLowRankAlone(weight.change)) {
      AddFactors(ModuleOf(name), weight.change.low_rank.front());
      return Status::Ok();
    }
    return Approximate(weight);
  }

  Status AddVector(const BoundWeight& weight) {
    const std::string& name = weight.slot.name;
    if (!name.ends_with(".bias")) {
      Save(ModuleOf(name), *weight.change.raw);
      return Status::Ok();
    }
    has_bias_ = true;
    const std::string module = ModuleOf(name);
    const bool is_wrapped = ranks_.contains(module);  // its matrix came before
    tensors_.push_back(
        {std::string(kPrefix) + module + (is_wrapped ? ".base_layer.bias" : ".bias"), *weight.change.raw});
    return Status::Ok();
  }

  // In full, in the type it replaces. PEFT unties a saved embedding: the head is then saved too.
  Status AddVocabulary(const BoundWeight& weight) {
    const DType dtype = weight.change.raw ? weight.change.raw->dtype : weight.base->view.dtype;
    const TensorView full = weight.change.raw ? *weight.change.raw : Decoded(weight, dtype);
    if (!weight.change.IsBase()) Save(ModuleOf(weight.slot.name), full);
    if (weight.slot.kind == SlotKind::kEmbedding && variant_.tied) Save(ModuleOf(kHeadName), full);
    return Status::Ok();
  }

  TensorView Decoded(const BoundWeight& weight, DType dtype) {
    const RowDecoder decoder(weight.base->view, weight.change);
    const size_t row_bytes = decoder.d_in() * DTypeBytes(dtype);
    Buffer<uint8_t>& bytes = owned_.emplace_back(decoder.d_out() * row_bytes);
    Mat<float> row_of_thread(pool_.n_threads(), decoder.d_in());
    pool_.ParallelFor(decoder.d_out(), RowGrain(decoder.d_in()), [&](size_t begin, size_t end, size_t thread) {
      const std::span<float> row = row_of_thread.view().RowSpan(thread);
      for (size_t r = begin; r < end; ++r) {
        decoder.Decode(r, row);
        row_ops::Narrow(row, dtype, bytes.data() + r * row_bytes);
      }
    });
    return {dtype, Shape{decoder.d_out(), decoder.d_in()}, {bytes.data(), bytes.size()}};
  }

  Status Approximate(const BoundWeight& weight) {
    if (options_.rank == 0) {
      return FailedPrecondition("tensor " + weight.slot.name + " is coded as \"" + CodeName(weight.change) +
                                "\", which is no low rank: give --rank R to have such matrices approximated, or make "
                                "the delta with --code lowrank");
    }
    const TensorView full = Decoded(weight, DType::kF32);
    DF_ASSIGN_OR_RETURN(EncodedWeight encoded,
                        EncodeLowRank(pool_, {weight.slot.name, weight.base->view, full}, options_.rank));
    owned_.pop_back();  // `full`
    if (encoded.delta.low_rank.empty()) return Status::Ok();
    report_.approximated.push_back({weight.slot.name, encoded.quality.relative_frobenius});
    AddFactors(ModuleOf(weight.slot.name), encoded.delta.low_rank.front());
    for (Buffer<uint8_t>& part : encoded.owned) owned_.push_back(std::move(part));
    return Status::Ok();
  }

  void AddFactors(const std::string& module, const LowRank& pair) {
    ranks_[module] = MatrixRows(pair.a);
    factors_.emplace(module, pair);
    ++report_.n_factors;
  }

  void Save(const std::string& module, const TensorView& weight) {
    saved_.push_back(module);
    tensors_.push_back({std::string(kPrefix) + module + ".weight", weight});
    ++report_.n_saved;
  }

  // A module is saved with its bias, whether that changed or not.
  Status AddBiasesOfSaved() {
    for (const BoundWeight& weight : variant_.weights) {
      const bool is_bias = weight.slot.IsVector() && weight.slot.name.ends_with(".bias");
      if (!is_bias || !std::ranges::count(saved_, ModuleOf(weight.slot.name)) || !weight.change.IsBase()) continue;
      tensors_.push_back({std::string(kPrefix) + weight.slot.name, weight.base->view});
    }
    return Status::Ok();
  }

  static size_t Padded(size_t rank, size_t step) { return (rank + step - 1) / step * step; }

  static void Pad(size_t rank, LowRank& pair, std::vector<Buffer<uint8_t>>& owned) {
    const size_t had = MatrixRows(pair.a), d_in = MatrixCols(pair.a), d_out = MatrixRows(pair.b);
    if (had == rank) return;
    const size_t a_bytes = DTypeBytes(pair.a.dtype), b_bytes = DTypeBytes(pair.b.dtype);
    Buffer<uint8_t>& a = owned.emplace_back(rank * d_in * a_bytes);
    std::memcpy(a.data(), pair.a.bytes.data(), pair.a.bytes.size());
    std::memset(a.data() + pair.a.bytes.size(), 0, a.size() - pair.a.bytes.size());
    pair.a = {pair.a.dtype, Shape{rank, d_in}, {a.data(), a.size()}};
    Buffer<uint8_t>& b = owned.emplace_back(d_out * rank * b_bytes);
    std::memset(b.data(), 0, b.size());
    for (size_t row = 0; row < d_out; ++row) {
      std::memcpy(b.data() + row * rank * b_bytes, pair.b.bytes.data() + row * had * b_bytes, had * b_bytes);
    }
    pair.b = {pair.b.dtype, Shape{d_out, rank}, {b.data(), b.size()}};
  }
  void Pad(size_t rank, LowRank& pair) { Pad(rank, pair, owned_); }

  // Rank -> patterns "model\.layers\.(0|3)\.mlp\.up_proj": one a projection, its layers together.
  std::map<size_t, std::vector<std::string>> Groups(size_t step) const {
    std::map<size_t, std::map<std::string, std::string>> layers;  // rank, projection -> "0|3"
    constexpr std::string_view kLayers = "model.layers.";
    for (const auto& [module, rank] : ranks_) {
      const size_t dot = module.find('.', kLayers.size());
      std::string& list = layers[Padded(rank, step)][module.substr(dot + 1)];
      list += (list.empty() ? "" : "|") + module.substr(kLayers.size(), dot - kLayers.size());
    }
    std::map<size_t, std::vector<std::string>> groups;
    for (const auto& [rank, projections] : layers) {
      for (const auto& [projection, list] : projections) {
        std::string escaped;
        for (const char c : projection) escaped += c == '.' ? std::string("\\.") : std::string(1, c);
        groups[rank].push_back("model\\.layers\\.(" + list + ")\\." + escaped);
      }
    }
    return groups;
  }
  size_t NumberOfGroups(size_t step) const {
    size_t n = 0;
    for (const auto& [rank, patterns] : Groups(step)) n += patterns.size();
    return n;
  }

  ThreadPool& pool_;
  const ExportOptions& options_;
  const BoundVariant& variant_;
  ExportReport& report_;
  std::map<std::string, size_t> ranks_;  // by module
  std::map<std::string, LowRank> factors_;
  std::vector<std::string> saved_;
  std::vector<AdapterTensor> tensors_;
  std::vector<Buffer<uint8_t>> owned_;
  bool has_bias_ = false;
};

Status WriteTensors(std::vector<AdapterTensor> tensors, const std::string& path) {
  // Largest elements first, so that every tensor is aligned when mapped.
  std::ranges::sort(tensors, [](const AdapterTensor& a, const AdapterTensor& b) {
    const size_t a_bytes = DTypeBytes(a.view.dtype), b_bytes = DTypeBytes(b.view.dtype);
    return a_bytes != b_bytes ? a_bytes > b_bytes : a.name < b.name;
  });
  std::vector<TensorSpec> specs;
  for (const AdapterTensor& tensor : tensors) specs.push_back({tensor.name, tensor.view.dtype, tensor.view.shape});
  DF_ASSIGN_OR_RETURN(SafetensorsWriter writer, SafetensorsWriter::Create(path, specs, {{"format", "pt"}}));
  for (const AdapterTensor& tensor : tensors) DF_RETURN_IF_ERROR(writer.Write(tensor.view.bytes));
  return writer.Commit();
}

std::string AdapterCard(const ExportReport& report, const ExportOptions& options) {
  std::string card =
      CardHead(options.base_name) +
      (options.origin.empty() ? "# LoRA adapter exported from a delta\n\n" : "# LoRA adapter of a merge\n\n") +
      "Made by deltafold: " + std::to_string(report.n_factors) + " modules of rank at most " +
      std::to_string(report.largest_rank) + ", " + std::to_string(report.n_saved) + " saved in full.\n";
  if (!options.origin.empty()) card += "\n" + options.origin;
  if (report.approximated.empty()) return card;
  double sum = 0;
  for (const ApproximatedWeight& weight : report.approximated) sum += weight.relative_error;
  return card + "\n" + std::to_string(report.approximated.size()) +
         " matrices of the delta have no low rank and are approximated; mean relative error of their differences " +
         DumpJson(Json(std::round(sum / static_cast<double>(report.approximated.size()) * 1e4) / 1e4)) + ".\n";
}

}  // namespace

Result<ExportReport> ExportPeft(ThreadPool& pool, const Checkpoint& base, const std::string& delta_directory,
                                const std::string& target, const ExportOptions& options) {
  DF_ASSIGN_OR_RETURN(const BoundVariant variant, BindVariant(base, delta_directory));
  if (variant.delta == nullptr) return FailedPrecondition(delta_directory + " is an adapter already");
  DF_RETURN_IF_ERROR(variant.delta->VerifyDigest());
  ExportReport report;
  AdapterMaker maker(pool, options, variant, report);
  DF_RETURN_IF_ERROR(maker.AddAll());
  const Json config = maker.Config();
  const std::vector<AdapterTensor> tensors = maker.Tensors();
  DF_ASSIGN_OR_RETURN(AtomicDirectory directory,
                      AtomicDirectory::Create(target, {.replace = options.replace,
                                                       .mark = "adapter_config.json",
                                                       .inputs = {base.directory(), delta_directory}}));
  DF_RETURN_IF_ERROR(WriteTensors(tensors, directory.path() + "/adapter_model.safetensors"));
  DF_RETURN_IF_ERROR(WriteFileAtomically(directory.path() + "/adapter_config.json", DumpJson(config, 2) + "\n"));
  DF_RETURN_IF_ERROR(WriteFileAtomically(directory.path() + "/README.md", AdapterCard(report, options)));
  DF_RETURN_IF_ERROR(base.CheckIntact());
  DF_RETURN_IF_ERROR(variant.delta->CheckIntact());
  DF_RETURN_IF_ERROR(directory.Commit());
  return report;
}

}  // namespace df
