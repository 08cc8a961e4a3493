#include "tools/head_rows.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "kernels/cost.h"
#include "kernels/embed.h"
#include "kernels/limits.h"
#include "kernels/logprobs.h"
#include "kernels/sample.h"

namespace df::tools {
namespace {

using Operation = RowSet::Operation;
using Times = RowSet::Times;

constexpr size_t kMaxReadBytes = size_t{320} << 20;  // what is read to see how fast reading is
constexpr size_t kTokens = 512;
constexpr size_t kTop = 20;  // as many as the API gives

class HeadWorld {
 public:
  HeadWorld(KernelContext& context, const kernels::LinearWeight& head)
      : context_(context),
        head_(head),
        x_(1, head.weight.d_in),
        y_(1, head.weight.d_out),
        logits_(1, head.weight.d_out),
        rows_(kTokens, head.weight.d_in),
        top_(kTop) {
    for (size_t i = 0; i < x_.cols(); ++i) x_.Row(0)[i] = static_cast<float>(2 * RandomUnit(3, i) - 1);
    // As a model's: most within a few units, a few far above.
    for (size_t i = 0; i < logits_.cols(); ++i) {
      logits_.Row(0)[i] = static_cast<float>(-2 * std::log(1e-6 + RandomUnit(4, i)));
    }
  }

  void Multiply() { kernels::Linear(context_, head_, {&kOneRow, 1}, x_.view(), y_.view()); }
  kernels::Cost CostOfMultiply() const { return kernels::LinearCost(context_.options, head_, {&kOneRow, 1}); }

  void Draw(kernels::SampleRow row) {
    row.vocab = logits_.cols();
    row.draw = draw_++;
    kernels::Sample(context_, logits_.view(), {&row, 1}, {&sampled_, 1});
  }
  void TakeTop() {
    const kernels::LogprobRow row = {.vocab = logits_.cols(), .n_top = kTop, .top = top_.data()};
    kernels::LogNormalizer normalizer;
    kernels::TopLogprobs(context_, logits_.view(), {&row, 1}, {&normalizer, 1});
  }
  double logit_bytes() const { return static_cast<double>(logits_.size_bytes()); }

  // Other tokens each time.
  void Embed() {
    for (int32_t& token : tokens_) {
      token = static_cast<int32_t>(RandomBits(5, draw_++) % head_.weight.d_out);
    }
    const kernels::LinearSegment all = {.begin = 0, .end = kTokens, .phase = kernels::Phase::kPrefill};
    kernels::Embed(context_, head_.weight, {&all, 1}, tokens_, rows_.view());
  }
  // A token's pairs of columns lie in as many lines; its row is written.
  double embed_bytes() const {
    constexpr size_t kLineBytes = 64;
    const size_t d_model = head_.weight.d_in;
    return static_cast<double>(kTokens * (d_model / 2 * kLineBytes + d_model * sizeof(float)));
  }

  size_t read_bytes() const { return std::min(kMaxReadBytes, head_.weight.bytes()) / 4096 * 4096; }
  void Read() {
    const volatile uint64_t digest = kernels::ReadMemory(context_, head_.weight.tiles.span().first(read_bytes()));
    (void)digest;
  }

 private:
  static constexpr kernels::LinearSegment kOneRow = {.begin = 0, .end = 1};

  KernelContext& context_;
  const kernels::LinearWeight& head_;
  Mat<float> x_, y_, logits_, rows_;
  std::vector<kernels::TokenLogprob> top_;
  std::vector<int32_t> tokens_ = std::vector<int32_t>(kTokens);
  kernels::Sampled sampled_;
  uint64_t draw_ = 0;
};

class HeadRows {
 public:
  HeadRows(HeadWorld& world, RowSet& rows) : world_(world), rows_(rows) {
    head_ = rows.Add([&world] { world.Multiply(); });
    read_ = rows.Add([&world] { world.Read(); });
    rows.SetReading(read_, static_cast<double>(world.read_bytes()));
  }

  void AddHead() { AddReadShare("head_bandwidth_share", head_, world_.CostOfMultiply()); }

  void AddEmbedding() {
    const Operation embed = rows_.Add([this] { world_.Embed(); });
    AddReadShare("embed_line_bandwidth_share", embed, {.bytes = world_.embed_bytes(), .flops = 0});
  }

  // Time of what follows the head over that of both. It finds the logits in a cache, as it does in a step.
  void AddShare(const std::string& name, std::function<void()> run) {
    const Operation after = rows_.Add(std::move(run));
    rows_.AddRow(
        {.name = name,
         .subject = after,
         .cost = {.bytes = world_.logit_bytes(), .flops = 0},
         .others = {head_},
         .sample = [head = head_, after](const Times& times) { return times(after) / (times(head) + times(after)); },
         .from_cache = true});
  }

 private:
  void AddReadShare(const std::string& name, Operation subject, const kernels::Cost& cost) {
    rows_.AddRow({.name = name,
                  .subject = subject,
                  .cost = cost,
                  .others = {read_},
                  .sample = [read = read_, subject, cost, bytes = static_cast<double>(world_.read_bytes())](
                                const Times& times) { return times(read) * cost.bytes / bytes / times(subject); }});
  }

  HeadWorld& world_;
  RowSet& rows_;
  Operation head_ = 0, read_ = 0;
};

}  // namespace

std::vector<RowResult> MeasureHeadRows(KernelContext& context, const kernels::LinearWeight& head,
                                       const std::string& shape, const RowSelection& selection, size_t n_rounds) {
  HeadWorld world(context, head);
  RowSet rows(shape, context.pool.n_threads());
  HeadRows all(world, rows);
  all.AddHead();
  all.AddShare("head_greedy_share", [&world] { world.Draw({.temperature = 0}); });
  all.AddShare("head_top_k_share", [&world] { world.Draw({.temperature = 1, .top_k = 50}); });
  all.AddShare("head_top_p_share", [&world] { world.Draw({.temperature = 1, .top_p = 0.95F}); });
  all.AddShare("head_top_logprobs_share", [&world] { world.TakeTop(); });
  all.AddEmbedding();
  return rows.Measure(selection, n_rounds);
}

}  // namespace df::tools
