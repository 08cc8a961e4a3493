#include "eval/scorer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "engine/kv_cache.h"
#include "kernels/sample.h"

namespace df::eval {
namespace {

// A row of a step's logits and what it is asked for.
struct WantedRow {
  size_t sequence = 0;  // of all
  int32_t next = 0;     // the token that follows
};

// Sequences [begin, end) are held in the KV cache together.
struct Pack {
  size_t begin = 0;
  size_t end = 0;
};

// What is fed of a sequence: all but its last token, which nothing follows.
size_t FedTokens(const ScoredSequence& sequence) { return sequence.tokens.empty() ? 0 : sequence.tokens.size() - 1; }

std::vector<Pack> Divide(std::span<const ScoredSequence> sequences, size_t kv_tokens) {
  std::vector<Pack> packs;
  size_t held = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const size_t tokens = KvBlocksFor(FedTokens(sequences[i])) * kernels::kKvBlockTokens;
    if (packs.empty() || held + tokens > kv_tokens) {
      packs.push_back({i, i});
      held = 0;
    }
    held += tokens;
    packs.back().end = i + 1;
  }
  return packs;
}

// Sum of p (log p - log q). Eight sums, so that the compiler may add eight at a time.
double DivergenceOf(std::span<const float> p, std::span<const float> log_p, const float* log_q) {
  std::array<double, 8> sums = {};
  // A token without probability adds nothing, even where the other has none either.
  const auto term = [&](size_t i) { return p[i] > 0 ? double{p[i]} * (double{log_p[i]} - double{log_q[i]}) : 0.0; };
  size_t i = 0;
  for (; i + 8 <= p.size(); i += 8) {
    for (size_t k = 0; k < 8; ++k) sums[k] += term(i + k);
  }
  for (; i < p.size(); ++i) sums[0] += term(i);
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

// One model's memory: the decoder of its base is shared, its keys and values are its own.
struct Runner {
  const Scored* model = nullptr;
  Decoder* decoder = nullptr;
  std::unique_ptr<KvPool> kv;
};

class Scoring {
 public:
  Scoring(KernelContext& context, std::span<const Scored> models, bool has_reference,
          std::span<const ScoredSequence> sequences, const ScorerOptions& options)
      : context_(context),
        has_reference_(has_reference),
        sequences_(sequences),
        options_(options),
        packs_(Divide(sequences, options.kv_tokens)),
        scores_(models.size(), std::vector<SequenceScore>(sequences.size())) {
    size_t n_blocks = 1;
    for (const Pack& pack : packs_) n_blocks = std::max(n_blocks, BlocksOf(pack));
    for (const Scored& model : models) {
      widest_ = std::max({widest_, model.vocab(), model.base->config.vocab});
      auto& decoder = decoders_[model.base.get()];
      if (decoder == nullptr) decoder = std::make_unique<Decoder>(model.base);
      const KvPoolOptions kv = {.dtype = DType::kF32, .n_blocks = n_blocks};
      runners_.push_back({&model, decoder.get(), std::make_unique<KvPool>(model.base->config, kv)});
    }
    // Logits of one model, the reference's log-probabilities and probabilities, and those of the model at hand.
    most_rows_ = std::clamp<uint64_t>(options.logit_bytes / (widest_ * sizeof(float)), 1, options.rows_a_step);
    log_p_ = Mat<float>(most_rows_, widest_);
    log_q_ = Mat<float>(most_rows_, widest_);
    if (has_reference_) p_ = Mat<float>(most_rows_, widest_);
  }

  Result<std::vector<std::vector<SequenceScore>>> Run() {
    for (const Pack& pack : packs_) DF_RETURN_IF_ERROR(RunPack(pack));
    for (const Runner& runner : runners_) DF_RETURN_IF_ERROR(runner.model->base->CheckIntact());
    return std::move(scores_);
  }

 private:
  size_t BlocksOf(const Pack& pack) const {
    size_t n_blocks = 0;
    for (size_t i = pack.begin; i < pack.end; ++i) n_blocks += KvBlocksFor(FedTokens(sequences_[i]));
    return n_blocks;
  }

  // A step takes tokens of the pack's sequences in order until rows or logits are enough.
  Status RunPack(const Pack& pack) {
    LayOut(pack);
    size_t sequence = pack.begin, position = 0;
    while (sequence < pack.end) {
      FillBatch(pack, sequence, position);
      if (batch_.tokens.empty()) continue;  // of sequences of one token
      DF_RETURN_IF_ERROR(RunStep());
      done_tokens_ += batch_.tokens.size() * runners_.size();
      if (options_.on_progress && !options_.on_progress(done_tokens_)) {
        return Status(StatusCode::kCancelled, "interrupted");
      }
    }
    return Status::Ok();
  }

  // Blocks of the pool in order of sequence and position.
  void LayOut(const Pack& pack) {
    blocks_.resize(BlocksOf(pack));
    for (size_t i = 0; i < blocks_.size(); ++i) blocks_[i] = static_cast<int32_t>(i);
    first_block_.assign(pack.end - pack.begin, 0);
    for (size_t i = pack.begin; i + 1 < pack.end; ++i) {
      first_block_[i + 1 - pack.begin] = first_block_[i - pack.begin] + KvBlocksFor(FedTokens(sequences_[i]));
    }
  }

  void FillBatch(const Pack& pack, size_t& sequence, size_t& position) {
    batch_.Clear();
    wanted_.clear();
    while (sequence < pack.end && batch_.tokens.size() < options_.rows_a_step && wanted_.size() < most_rows_) {
      const ScoredSequence& scored = sequences_[sequence];
      const size_t begin = batch_.tokens.size(), first_position = position;
      while (position < FedTokens(scored) && batch_.tokens.size() < options_.rows_a_step &&
             wanted_.size() < most_rows_) {
        if (position + 1 >= scored.first_scored) {
          batch_.logit_rows.push_back(batch_.tokens.size());
          wanted_.push_back({sequence, scored.tokens[position + 1]});
        }
        batch_.tokens.push_back(scored.tokens[position++]);
      }
      if (begin < batch_.tokens.size()) {
        batch_.segments.push_back({.begin = begin,
                                   .end = batch_.tokens.size(),
                                   .phase = kernels::Phase::kPrefill,
                                   .variant = nullptr,
                                   .position = first_position,
                                   .block_table = blocks_.data() + first_block_[sequence - pack.begin]});
      }
      if (position < FedTokens(scored)) return;
      ++sequence;
      position = 0;
    }
  }

  Status RunStep() {
    for (size_t i = 0; i < runners_.size(); ++i) {
      const Runner& runner = runners_[i];
      for (BatchSegment& segment : batch_.segments) segment.variant = runner.model->variant.get();
      const MatView<float> logits = runner.decoder->Step(context_, batch_, *runner.kv);
      if (wanted_.empty()) continue;
      DF_RETURN_IF_ERROR(ScoreRows(i, logits));
    }
    return Status::Ok();
  }

  Status ScoreRows(size_t model, const MatView<float>& logits) {
    const size_t vocab = runners_[model].model->vocab();
    draws_.clear();
    for (size_t row = 0; row < wanted_.size(); ++row) draws_.push_back({.row = row, .vocab = vocab});
    best_.resize(wanted_.size());
    kernels::Sample(context_, logits, draws_, best_);
    for (const kernels::Sampled& best : best_) {
      if (best.token < 0) return Corrupt("a model's logits are not finite");
    }
    const bool is_reference = has_reference_ && model == 0;
    Mat<float>& log_probability = is_reference ? log_p_ : log_q_;
    const MatView<float> out(log_probability.view().data, wanted_.size(), vocab);
    kernels::LogSoftmax(context_, MatView<const float>(logits.data, wanted_.size(), vocab, logits.stride), out);
    if (is_reference) KeepReference(out);
    const bool compared = has_reference_ && vocab == runners_[0].model->vocab();
    divergence_.assign(wanted_.size(), 0);
    if (compared && !is_reference) Compare(out);
    AddRows(model, out, compared);
    return Status::Ok();
  }

  void KeepReference(const MatView<float>& log_p) {
    reference_best_ = best_;
    context_.pool.ParallelFor(log_p.rows, 1, [&](size_t begin, size_t end, size_t /*thread*/) {
      for (size_t row = begin; row < end; ++row) {
        const float* from = log_p.Row(row);
        float* to = p_.view().data + row * log_p.cols;
        for (size_t i = 0; i < log_p.cols; ++i) to[i] = std::exp(from[i]);
      }
    });
  }

  void Compare(const MatView<float>& log_q) {
    const float* const p = p_.view().data;
    const float* const log_p = log_p_.view().data;
    context_.pool.ParallelFor(log_q.rows, 1, [&](size_t begin, size_t end, size_t /*thread*/) {
      for (size_t row = begin; row < end; ++row) {
        const size_t at = row * log_q.cols;
        divergence_[row] = DivergenceOf({p + at, log_q.cols}, {log_p + at, log_q.cols}, log_q.Row(row));
      }
    });
  }

  void AddRows(size_t model, const MatView<float>& log_probability, bool compared) {
    for (size_t row = 0; row < wanted_.size(); ++row) {
      SequenceScore& score = scores_[model][wanted_[row].sequence];
      ++score.n_tokens;
      score.cross_entropy -= double{log_probability.Row(row)[wanted_[row].next]};
      score.divergence += divergence_[row];
      if (best_[row].token == wanted_[row].next) ++score.n_right;
      if (compared && best_[row].token == reference_best_[row].token) ++score.n_agree;
    }
  }

  KernelContext& context_;
  const bool has_reference_;
  const std::span<const ScoredSequence> sequences_;
  const ScorerOptions& options_;
  const std::vector<Pack> packs_;
  std::map<const BaseWeights*, std::unique_ptr<Decoder>> decoders_;
  std::vector<Runner> runners_;
  std::vector<std::vector<SequenceScore>> scores_;
  size_t widest_ = 0, most_rows_ = 1;
  uint64_t done_tokens_ = 0;
  // Of the step at hand, reused from step to step.
  Batch batch_;
  std::vector<WantedRow> wanted_;
  std::vector<int32_t> blocks_;
  std::vector<size_t> first_block_;
  std::vector<kernels::SampleRow> draws_;
  std::vector<kernels::Sampled> best_, reference_best_;
  std::vector<double> divergence_;
  Mat<float> log_p_, log_q_, p_;  // [most_rows, widest]
};

Status CheckSequences(std::span<const Scored> models, std::span<const ScoredSequence> sequences) {
  size_t vocab = SIZE_MAX, positions = SIZE_MAX;
  for (const Scored& model : models) {
    vocab = std::min(vocab, model.vocab());
    positions = std::min(positions, (model.variant ? model.variant->config : model.base->config).max_positions);
  }
  for (const ScoredSequence& sequence : sequences) {
    if (sequence.first_scored == 0) return InvalidArgument("the first token of a sequence has no probability");
    if (sequence.tokens.size() > positions) {
      return InvalidArgument("a sequence of " + std::to_string(sequence.tokens.size()) +
                             " tokens is beyond the model's " + std::to_string(positions) + " positions");
    }
    for (const int32_t token : sequence.tokens) {
      if (token >= 0 && static_cast<size_t>(token) < vocab) continue;
      return InvalidArgument("token " + std::to_string(token) +
                             " is not in every model's vocabulary: the smallest has " + std::to_string(vocab));
    }
  }
  return Status::Ok();
}

}  // namespace

uint64_t FedTokens(std::span<const ScoredSequence> sequences) {
  uint64_t sum = 0;
  for (const ScoredSequence& sequence : sequences) sum += FedTokens(sequence);
  return sum;
}

Result<std::vector<std::vector<SequenceScore>>> ScoreSequences(KernelContext& context, std::span<const Scored> models,
                                                               bool has_reference,
                                                               std::span<const ScoredSequence> sequences,
                                                               const ScorerOptions& options) {
  DF_CHECK(!models.empty());
  DF_RETURN_IF_ERROR(CheckSequences(models, sequences));
  return Scoring(context, models, has_reference, sequences, options).Run();
}

}  // namespace df::eval
