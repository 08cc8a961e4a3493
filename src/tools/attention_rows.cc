#include "tools/attention_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/rng.h"
#include "kernels/attention.h"
#include "kernels/cost_attention.h"
#include "kernels/limits.h"

namespace df::tools {
namespace {

using kernels::kKvBlockTokens;
using Operation = RowSet::Operation;
using Times = RowSet::Times;

constexpr size_t kBatch = 8;
constexpr size_t kMaxReadBytes = size_t{256} << 20;  // what is read to see how fast reading is
constexpr size_t kMultiplyAddSteps = 300'000;        // about 10 ms

size_t BlocksFor(size_t n_tokens) { return (n_tokens + kKvBlockTokens - 1) / kKvBlockTokens; }

// One layer's cache, and sequences whose blocks are drawn from all of it.
class AttentionWorld {
 public:
  AttentionWorld(KernelContext& context, const AttentionShape& shape) : context_(context), shape_(shape) {
    const size_t longest = *std::max_element(shape.decode_tokens.begin(), shape.decode_tokens.end());
    const size_t most_rows = *std::max_element(shape.prefill_tokens.begin(), shape.prefill_tokens.end());
    const size_t n_blocks = std::max(kBatch * BlocksFor(longest), BlocksFor(most_rows));
    const size_t bytes = n_blocks * shape.n_kv_heads * kKvBlockTokens * shape.head_dim * sizeof(uint16_t);
    keys_ = Buffer<uint8_t>(bytes);
    values_ = Buffer<uint8_t>(bytes);
    FillRandom(keys_);
    FillRandom(values_);
    ShuffleBlocks(n_blocks);
    q_ = Mat<float>(most_rows, shape.n_heads * shape.head_dim);
    out_ = Mat<float>(most_rows, shape.n_heads * shape.head_dim);
    kv_ = Mat<float>(most_rows, shape.n_kv_heads * shape.head_dim);
    for (Mat<float>* mat : {&q_, &kv_}) {
      for (size_t i = 0; i < mat->rows() * mat->cols(); ++i)
        mat->Row(0)[i] = static_cast<float>(RandomUnit(1, i) - 0.5);
    }
  }

  // `n_sequences` at the end of as many contexts, or (queries = tokens) all of one sequence.
  struct Call {
    size_t n_sequences = 1;
    size_t n_tokens = 0;   // of each, the queries' own among them
    size_t n_queries = 1;  // of each, the last ones
    size_t window = 0;
  };
  void Run(const Call& call) {
    FillSegments(call);
    const size_t n = call.n_sequences * call.n_queries;
    kernels::Attention(context_, segments_, q_.Rows(0, n), View(), OptionsOf(call), out_.Rows(0, n));
  }
  void Write(const Call& call) {
    FillSegments(call);
    const MatView<float> rows = kv_.Rows(0, call.n_sequences * call.n_queries);
    kernels::WriteKv(context_, segments_, rows, rows, View());
  }
  kernels::Cost CostOf(const Call& call) {
    FillSegments(call);
    const kernels::AttentionCost cost = kernels::CostOfAttention(segments_, View(), OptionsOf(call));
    return {.bytes = cost.bytes, .flops = cost.flops};
  }
  kernels::Cost CostOfWrite(const Call& call) {
    FillSegments(call);
    return {.bytes = kernels::BytesOfWriteKv(segments_, View()), .flops = 0};
  }
  // The next `n_bytes` of the cache in sequence.
  void Read(size_t n_bytes) {
    if (read_at_ + n_bytes > keys_.size()) read_at_ = 0;
    const volatile uint64_t digest = kernels::ReadMemory(context_, keys_.span().subspan(read_at_, n_bytes));
    (void)digest;
    read_at_ += n_bytes;
  }
  double MultiplyAdd() { return kernels::MultiplyAdd(context_, kMultiplyAddSteps); }
  size_t most_read_bytes() const { return std::min(kMaxReadBytes, keys_.size()); }

 private:
  // A megabyte of random numbers below 1, again and again: all of it would take longer than measuring.
  static void FillRandom(Buffer<uint8_t>& memory) {
    std::vector<uint16_t> some(size_t{1} << 19);
    for (size_t i = 0; i < some.size(); ++i) some[i] = static_cast<uint16_t>(0x3C00 | (RandomBits(2, i) & 0x83FF));
    for (size_t at = 0; at < memory.size(); at += 2 * some.size()) {
      std::memcpy(memory.data() + at, some.data(), std::min(2 * some.size(), memory.size() - at));
    }
  }

  // As in a cache that has served for a while. The list twice: a sequence may begin at any block.
  void ShuffleBlocks(size_t n_blocks) {
    blocks_.resize(n_blocks);
    std::iota(blocks_.begin(), blocks_.end(), 0);
    for (size_t i = n_blocks; i-- > 1;) std::swap(blocks_[i], blocks_[RandomBits(3, i) % (i + 1)]);
    blocks_.insert(blocks_.end(), blocks_.begin(), blocks_.begin() + static_cast<ptrdiff_t>(n_blocks));
  }

  void FillSegments(const Call& call) {
    segments_.clear();
    const size_t n_blocks = blocks_.size() / 2;
    for (size_t i = 0; i < call.n_sequences; ++i) {
      segments_.push_back({.begin = i * call.n_queries,
                           .end = (i + 1) * call.n_queries,
                           .phase = call.n_queries == 1 ? kernels::Phase::kDecode : kernels::Phase::kPrefill,
                           .position = call.n_tokens - call.n_queries,
                           .block_table = blocks_.data() + next_block_});
      next_block_ = (next_block_ + BlocksFor(call.n_tokens)) % n_blocks;
    }
  }

  kernels::KvLayerView View() {
    return {.dtype = DType::kBf16,
            .keys = keys_.data(),
            .values = values_.data(),
            .n_kv_heads = shape_.n_kv_heads,
            .head_dim = shape_.head_dim};
  }
  kernels::AttentionOptions OptionsOf(const Call& call) const {
    return {.n_heads = shape_.n_heads,
            .scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim)),
            .window = call.window};
  }

  KernelContext& context_;
  const AttentionShape& shape_;
  Buffer<uint8_t> keys_, values_;
  std::vector<int32_t> blocks_;
  std::vector<kernels::SequenceSegment> segments_;
  Mat<float> q_, out_, kv_;
  size_t next_block_ = 0, read_at_ = 0;
};

class AttentionRows {
 public:
  AttentionRows(AttentionWorld& world, RowSet& rows) : world_(world), rows_(rows) {}

  // As many bytes as keys and values have are read for comparison, at most `most_read_bytes`.
  void AddDecode(const AttentionWorld::Call& call) {
    const kernels::Cost cost = world_.CostOf(call);
    const Operation decode = rows_.Add([this, call] { world_.Run(call); });
    AddReadShare("attention_decode_read_share_" + std::to_string(call.n_sequences), decode, cost);
  }

  void AddWrite(const AttentionWorld::Call& call) {
    const Operation write = rows_.Add([this, call] { world_.Write(call); });
    AddReadShare("kv_write_read_share", write, world_.CostOfWrite(call));
  }

  void AddPrefill(const AttentionWorld::Call& call) {
    const kernels::Cost cost = world_.CostOf(call);
    const Operation prefill = rows_.Add([this, call] { world_.Run(call); });
    const Operation peak = rows_.Add([this] { world_.MultiplyAdd(); });
    const double flops = world_.MultiplyAdd();
    rows_.AddRow({.name = call.window == 0 ? "attention_prefill_fma_share" : "attention_prefill_window_fma_share",
                  .subject = prefill,
                  .cost = cost,
                  .others = {peak},
                  .sample = [=](const Times& times) { return times(peak) * cost.flops / flops / times(prefill); }});
  }

 private:
  void AddReadShare(const std::string& name, Operation subject, const kernels::Cost& cost) {
    const size_t bytes =
        std::min(world_.most_read_bytes(), static_cast<size_t>(cost.bytes) / (size_t{4} << 10) * (size_t{4} << 10));
    const Operation read = rows_.Add([this, bytes] { world_.Read(bytes); });
    rows_.SetReading(read, static_cast<double>(bytes));
    rows_.AddRow({.name = name, .subject = subject, .cost = cost, .others = {read}, .sample = [=](const Times& times) {
                    return times(read) * cost.bytes / static_cast<double>(bytes) / times(subject);
                  }});
  }

  AttentionWorld& world_;
  RowSet& rows_;
};

}  // namespace

std::vector<RowResult> MeasureAttentionRows(KernelContext& context, const AttentionShape& shape,
                                            const RowSelection& selection, size_t n_rounds) {
  AttentionWorld world(context, shape);
  std::vector<RowResult> results;
  const auto measure = [&](const std::string& what, const auto& add) {
    RowSet rows(shape.name + " " + what, context.pool.n_threads());
    AttentionRows attention(world, rows);
    add(attention);
    for (RowResult& row : rows.Measure(selection, n_rounds)) results.push_back(std::move(row));
  };
  for (const size_t n : shape.decode_tokens) {
    measure(std::to_string(n) + " tokens", [n](AttentionRows& rows) {
      for (const size_t batch : {size_t{1}, kBatch}) rows.AddDecode({.n_sequences = batch, .n_tokens = n});
    });
  }
  for (const size_t n : shape.prefill_tokens) {
    measure(std::to_string(n) + " tokens", [n](AttentionRows& rows) {
      rows.AddPrefill({.n_tokens = n, .n_queries = n});
      rows.AddWrite({.n_tokens = n, .n_queries = n});
    });
  }
  const size_t longest = *std::max_element(shape.prefill_tokens.begin(), shape.prefill_tokens.end());
  measure(std::to_string(longest) + " tokens, window " + std::to_string(shape.window), [&](AttentionRows& rows) {
    rows.AddPrefill({.n_tokens = longest, .n_queries = longest, .window = shape.window});
  });
  return results;
}

}  // namespace df::tools
