#include "codec/layer_stream.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "model/decoder.h"
#include "model/layer_names.h"

namespace df {
namespace {

size_t BlocksOf(size_t n_tokens) { return (n_tokens + kernels::kKvBlockTokens - 1) / kernels::kKvBlockTokens; }

size_t TokensOf(const TokenSequences& sequences, size_t n_sequences) {
  size_t n_tokens = 0;
  for (size_t i = 0; i < n_sequences; ++i) n_tokens += sequences[i].size();
  return n_tokens;
}

// The weights are the caller's for as long as the stream runs.
std::shared_ptr<const Checkpoint> Unowned(const Checkpoint& checkpoint) {
  return {std::shared_ptr<const Checkpoint>(), &checkpoint};
}

// The slots that are fed with the same.
LinearSlot FirstWithInput(LinearSlot slot) {
  switch (slot) {
    case LinearSlot::kK:
    case LinearSlot::kV: return LinearSlot::kQ;
    case LinearSlot::kUp: return LinearSlot::kGate;
    default: return slot;
  }
}

// One of the two models: its activations and the keys and values of the layer at hand.
struct Runner {
  Runner(std::shared_ptr<const BaseWeights> weights, size_t n_blocks)
      : decoder(weights), kv(OneLayer(weights->config), {.dtype = DType::kF32, .n_blocks = n_blocks}) {}

  static ModelConfig OneLayer(ModelConfig config) {
    config.n_layers = 1;
    return config;
  }

  Decoder decoder;
  KvPool kv;
};

class LayerStreamImpl : public LayerStream {
 public:
  LayerStreamImpl(const Checkpoint& base, const Checkpoint& fine_tune, const Calibration& calibration,
                  size_t n_sequences)
      : base_(base),
        fine_tune_(fine_tune),
        context_(*calibration.context),
        n_tokens_(TokensOf(calibration.sequences, n_sequences)) {
    const uint64_t state = StateBytes(fine_tune.config(), n_tokens_);
    moment_bytes_ = calibration.max_bytes > state ? calibration.max_bytes - state : 0;
    int32_t block = 0;
    for (size_t i = 0; i < n_sequences; ++i) {
      const std::vector<int32_t>& sequence = calibration.sequences[i];
      std::vector<int32_t>& table = blocks_.emplace_back(BlocksOf(sequence.size()));
      for (int32_t& entry : table) entry = block++;
      batch_.tokens.insert(batch_.tokens.end(), sequence.begin(), sequence.end());
    }
    n_blocks_ = static_cast<size_t>(block);
    size_t begin = 0;
    for (size_t i = 0; i < n_sequences; ++i) {
      const size_t end = begin + calibration.sequences[i].size();
      batch_.segments.push_back(
          {.begin = begin, .end = end, .phase = kernels::Phase::kPrefill, .block_table = blocks_[i].data()});
      begin = end;
    }
  }

  Status Load() {
    DF_ASSIGN_OR_RETURN(fine_tune_weights_, LoadBase(context_, Unowned(fine_tune_), WeightMemory::kMapped));
    DF_ASSIGN_OR_RETURN(base_weights_, LoadBase(context_, Unowned(base_), WeightMemory::kMapped));
    fine_tune_runner_.emplace(fine_tune_weights_, n_blocks_);
    return Status::Ok();
  }

  size_t n_tokens() const override { return n_tokens_; }

  void Begin(const LinearDelta* embedding) override {
    layer_ = 0;
    SetVariant(nullptr);
    fine_tune_runner_->decoder.Begin(context_, batch_);
    if (embedding == nullptr) return;
    coded_ = VariantWeights();
    coded_.config = fine_tune_.config();
    coded_.rope = fine_tune_weights_->rope;
    coded_.layers.resize(coded_.config.n_layers);
    coded_.final_norm = fine_tune_weights_->final_norm.Borrow();
    coded_.embedding = kernels::PackDelta(context_, *embedding);
    if (!coded_runner_) coded_runner_.emplace(base_weights_, n_blocks_);
    SetVariant(&coded_);
    coded_runner_->decoder.Begin(context_, batch_);
    coded_.embedding = {};
    has_coded_ = true;
  }

  Status RunLayer(const Visit& visit) override {
    DF_CHECK(layer_ < fine_tune_.config().n_layers);
    visit_ = &visit;
    status_ = Status::Ok();
    if (has_coded_) {
      RunFineTune([this](LinearSlot slot, MatView<const float> x) { Remember(slot, x); });
      BorrowNorms();
      coded_runner_->decoder.RunLayer(context_, layer_, coded_runner_->kv.Layer(0),
                                      [this](LinearSlot slot, MatView<const float> x) { Show(slot, x); });
      coded_.layers[layer_] = {};
    } else {
      RunFineTune([this](LinearSlot slot, MatView<const float> x) {
        Remember(slot, x);
        Show(slot, x);
      });
    }
    inputs_ = {};
    DropPages();
    ++layer_;
    DF_RETURN_IF_ERROR(status_);
    DF_RETURN_IF_ERROR(base_.CheckIntact());
    return fine_tune_.CheckIntact();
  }

  WeightInputs HeadInputs() override {
    const MatView<const float> x = fine_tune_runner_->decoder.NormOutputs(context_);
    const MatView<const float> coded = has_coded_ ? coded_runner_->decoder.NormOutputs(context_) : x;
    return GatherInputs(context_.pool, x, coded, moment_bytes_);
  }

  void Take(LinearSlot slot, const LinearDelta& delta) override {
    const auto i = static_cast<size_t>(slot);
    kernels::PackedDelta packed = kernels::PackDelta(context_, delta);
    packed.bias = fine_tune_weights_->layers[layer_].linear[i].bias.Borrow();
    coded_.layers[layer_].linear[i] = std::move(packed);
  }

 private:
  void RunFineTune(const InputObserver& observer) {
    fine_tune_runner_->decoder.RunLayer(context_, layer_, fine_tune_runner_->kv.Layer(0), observer);
  }

  void SetVariant(const VariantWeights* variant) {
    for (BatchSegment& segment : batch_.segments) segment.variant = variant;
    has_coded_ = false;
  }

  // Norms are stored exactly.
  void BorrowNorms() {
    for (size_t i = 0; i < kNormSlots; ++i) {
      coded_.layers[layer_].norm[i] = fine_tune_weights_->layers[layer_].norm[i].Borrow();
    }
  }

  // The fine-tune's input. The first norm's output alone is overwritten within the layer.
  void Remember(LinearSlot slot, MatView<const float> x) {
    if (FirstWithInput(slot) != slot) return;
    MatView<const float>& kept = fine_tune_inputs_[static_cast<size_t>(slot)];
    kept = x;
    if (slot != LinearSlot::kQ || !has_coded_) return;
    if (first_input_.rows() == 0) first_input_ = Mat<float>(x.rows, x.cols);
    for (size_t row = 0; row < x.rows; ++row) std::copy_n(x.Row(row), x.cols, first_input_.Row(row));
    kept = first_input_.view();
  }

  void Show(LinearSlot slot, MatView<const float> x) {
    if (!status_.ok() || !*visit_) return;
    if (FirstWithInput(slot) == slot) {
      inputs_ = {};  // first give back, then take
      inputs_ = GatherInputs(context_.pool, fine_tune_inputs_[static_cast<size_t>(slot)], x, moment_bytes_);
    }
    status_ = (*visit_)(slot, inputs_);
  }

  void DropPages() const {
    for (const Checkpoint* checkpoint : {&base_, &fine_tune_}) {
      for (size_t i = 0; i < kLinearSlots; ++i) {
        const StoredTensor* stored = checkpoint->FindOrNull(WeightName(layer_, static_cast<LinearSlot>(i)));
        if (stored != nullptr) stored->file->DropPages(stored->view.bytes);
      }
    }
  }

  const Checkpoint& base_;
  const Checkpoint& fine_tune_;
  KernelContext& context_;
  size_t n_tokens_;
  uint64_t moment_bytes_ = 0;
  size_t n_blocks_ = 0;
  std::vector<std::vector<int32_t>> blocks_;  // of each sequence
  Batch batch_;
  std::shared_ptr<const BaseWeights> base_weights_, fine_tune_weights_;
  std::optional<Runner> fine_tune_runner_, coded_runner_;
  VariantWeights coded_;
  bool has_coded_ = false;
  size_t layer_ = 0;  // the next one
  std::array<MatView<const float>, kLinearSlots> fine_tune_inputs_;
  Mat<float> first_input_;
  WeightInputs inputs_;  // of the matrix at hand and its neighbours
  const Visit* visit_ = nullptr;
  Status status_;
};

Status CheckSequences(const TokenSequences& sequences, const ModelConfig& config) {
  if (TokensOf(sequences, sequences.size()) == 0) return InvalidArgument("the calibration text holds no token");
  for (const std::vector<int32_t>& sequence : sequences) {
    if (sequence.empty()) return InvalidArgument("a calibration sequence holds no token");
    if (sequence.size() > config.max_positions) {
      return InvalidArgument("a calibration sequence has " + std::to_string(sequence.size()) +
                             " tokens, the model takes " + std::to_string(config.max_positions));
    }
    for (const int32_t id : sequence) {
      if (id >= 0 && static_cast<size_t>(id) < config.vocab) continue;
      return InvalidArgument("calibration token " + std::to_string(id) + " is not in the vocabulary of " +
                             std::to_string(config.vocab));
    }
  }
  return Status::Ok();
}

}  // namespace

uint64_t StateBytes(const ModelConfig& config, size_t n_tokens) {
  const uint64_t d_q = config.n_heads * config.head_dim, d_kv = config.n_kv_heads * config.head_dim;
  // As in model/layer.h's Activations, keys and values besides; the first input is remembered.
  const uint64_t floats = 3 * config.d_model + 2 * d_q + 2 * d_kv + 2 * config.d_ff + config.head_dim + 2 * d_kv;
  return (2 * floats + config.d_model) * sizeof(float) * n_tokens;
}

Result<std::unique_ptr<LayerStream>> LayerStream::Create(const Checkpoint& base, const Checkpoint& fine_tune,
                                                         const Calibration& calibration) {
  DF_CHECK(calibration.context != nullptr);
  DF_RETURN_IF_ERROR(CheckSequences(calibration.sequences, fine_tune.config()));
  size_t n_sequences = calibration.sequences.size();
  while (n_sequences > 1 &&
         StateBytes(fine_tune.config(), TokensOf(calibration.sequences, n_sequences)) > calibration.max_bytes / 2) {
    --n_sequences;
  }
  auto stream = std::make_unique<LayerStreamImpl>(base, fine_tune, calibration, n_sequences);
  DF_RETURN_IF_ERROR(stream->Load());
  return std::unique_ptr<LayerStream>(std::move(stream));
}

}  // namespace df
