// Stages of an Attention call: cut into tasks (attention_plan.h); every thread takes its share of them, span by span:
// scores, online softmax, weighted values (attention_tile-inl.h); where a context was cut into parts, merge their
// states.
#include "kernels/cpu/attention.h"

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/attention_plan.h"
#include "kernels/scratch_slots.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/attention_softmax-inl.h"
#include "kernels/cpu/attention_tile-inl.h"
#include "kernels/cpu/simd-inl.h"

#ifndef DELTAFOLD_KERNELS_CPU_ATTENTION_TYPES_
#define DELTAFOLD_KERNELS_CPU_ATTENTION_TYPES_

namespace df::kernels::cpu {

// One call of Attention, as its tasks see it.
struct AttentionCall {
  MatView<const float> q;
  KvLayerView kv;
  AttentionShape shape;
  float scale = 1.0F;
  MatView<float> out;
  RowStates parts;  // of the tasks of parts
};

// Working memory of one thread; every part 64-byte aligned. A row is a query of one head.
struct AttentionScratch {
  float* q = nullptr;       // [rows] at QueryStride: scaled queries
  float* scores = nullptr;  // [rows] at kScoreStride: of a span
  float* keys = nullptr;    // [kSpanBlocks][head_dim][16] widened
  RowStates whole;          // [rows] of all parts so far
  RowStates part;           // [rows] of the part at hand, from the second on
};

// Rows [begin, end) of a task, their queries [first_query, last_query], and what all of these see of a span.
struct RowTile {
  size_t begin = 0;
  size_t end = 0;
  size_t first_query = 0;
  size_t last_query = 0;
};

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_ATTENTION_TYPES_

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

// Calls body<n>() for n = n_rows <= kTileRowsMax.
template <size_t kRows = kTileRowsMax, class Body>
HWY_INLINE void WithRows(size_t n_rows, const Body& body) {
  if constexpr (kRows > 0) {
    if (n_rows == kRows) return body(std::integral_constant<size_t, kRows>());
    WithRows<kRows - 1>(n_rows, body);
  }
}

// The rows of a task in tiles of at most kTileRowsMax, sizes differing by at most one.
template <class Visit>
HWY_INLINE void ForEachRowTile(const AttentionTask& task, size_t group, const Visit& visit) {
  const size_t n_rows = task.n_queries * group;
  const size_t n_tiles = (n_rows + kTileRowsMax - 1) / kTileRowsMax;
  for (size_t i = 0; i < n_tiles; ++i) {
    const size_t begin = n_rows * i / n_tiles;
    const size_t end = n_rows * (i + 1) / n_tiles;
    visit(RowTile{.begin = begin, .end = end, .first_query = begin / group, .last_query = (end - 1) / group});
  }
}

// The span's blocks; where the task has none (before its window, behind its end), the nearest that it has.
template <typename T>
SpanBlocks<T> BlocksOf(const AttentionCall& call, const AttentionTask& task, size_t span) {
  const KvLayerView& kv = call.kv;
  const size_t first = task.tokens.begin / kKvBlockTokens;
  const size_t last = (task.tokens.end - 1) / kKvBlockTokens;
  SpanBlocks<T> blocks;
  for (size_t i = 0; i < kSpanBlocks; ++i) {
    const auto id = static_cast<size_t>(task.segment->block_table[std::clamp(span * kSpanBlocks + i, first, last)]);
    const size_t at = (id * kv.n_kv_heads + task.kv_head) * kKvBlockTokens * kv.head_dim;
    blocks.keys[i] = static_cast<const T*>(kv.keys) + at;
    blocks.values[i] = static_cast<const T*>(kv.values) + at;
  }
  return blocks;
}

// Tokens of the span that a query of the task sees, counted from the span's first.
TokenRange SeenOf(const AttentionCall& call, const AttentionTask& task, size_t query, size_t span) {
  const TokenRange visible = VisibleTokens(task.first_position + query, call.shape.window);
  const size_t first = span * kSpanTokens;
  const TokenRange seen = Intersect(visible, {.begin = first, .end = first + kSpanTokens});
  if (seen.empty()) return {};
  return {.begin = seen.begin - first, .end = seen.end - first};
}

// Tokens [first, first + n) of a span, and whether a tile of rows sees any.
struct TokenGroup {
  size_t span = 0;
  size_t first = 0;
  size_t n = 0;

  bool SeenBy(const AttentionCall& call, const AttentionTask& task, const RowTile& tile) const {
    const size_t begin = span * kSpanTokens + first;
    const size_t from = VisibleTokens(task.first_position + tile.first_query, call.shape.window).begin;
    return begin < task.first_position + tile.last_query + 1 && from < begin + n;
  }
};

// Scores of all rows for a group of tokens; what a tile of rows does not see is left out.
template <typename T>
void ScoreGroup(const AttentionCall& call, const AttentionTask& task, const TokenGroup& group,
                const SpanBlocks<T>& blocks, const SpanBlocks<T>* ahead, const AttentionScratch& s) {
  const size_t head_dim = call.kv.head_dim;
  ForEachRowTile(task, call.shape.group, [&](const RowTile& tile) HWY_ATTR {
    if (!group.SeenBy(call, task, tile)) return;
    const float* q = s.q + tile.begin * QueryStride(head_dim);
    float* scores = s.scores + tile.begin * kScoreStride;
    WithRows(tile.end - tile.begin, [&](auto rows) HWY_ATTR {
      if (ahead != nullptr && tile.begin == 0) {
        ScoreTile<rows(), true>(q, head_dim, blocks, *ahead, group.first, scores);
      } else {
        ScoreTile<rows(), false>(q, head_dim, blocks, blocks, group.first, scores);
      }
    });
  });
}

// Tokens of which a row does not see some are masked by UpdateRow.
template <typename T>
void ScoreSpan(const AttentionCall& call, const AttentionTask& task, size_t span, const SpanBlocks<T>& blocks,
               const SpanBlocks<T>& ahead, const AttentionScratch& s) {
  const size_t n_rows = task.n_queries * call.shape.group;
  const size_t n_tokens = ScoreVectors(std::min(kTileRowsMax, n_rows)) * kLanes;
  for (size_t first = 0; first < kSpanTokens; first += n_tokens) {
    const TokenGroup group = {.span = span, .first = first, .n = n_tokens};
    if constexpr (std::is_same_v<T, Bf16>) {
      if (n_rows >= kStagedRows) {
        // A group's blocks in the same place each time: they stay in the first cache.
        SpanBlocks<float> staged = {};
        for (size_t i = first / kKvBlockTokens; i * kKvBlockTokens < first + n_tokens; ++i) {
          float* to = s.keys + i * kKvBlockTokens % std::max(n_tokens, kKvBlockTokens) * call.kv.head_dim;
          if (first % kKvBlockTokens == 0) StageKeys(blocks.keys[i], call.kv.head_dim, ahead.keys[i], to);
          staged.keys[i] = to;
        }
        ScoreGroup<float>(call, task, group, staged, nullptr, s);
        continue;
      }
    }
    ScoreGroup<T>(call, task, group, blocks, &ahead, s);
  }
}

void UpdateSpan(const AttentionCall& call, const AttentionTask& task, size_t span, const AttentionScratch& s,
                const RowStates& states) {
  const size_t group = call.shape.group;
  for (size_t query = 0; query < task.n_queries; ++query) {
    const TokenRange seen = SeenOf(call, task, query, span);
    if (seen.empty()) continue;
    for (size_t row = query * group; row < (query + 1) * group; ++row) {
      UpdateRow(seen, s.scores + row * kScoreStride, states, row);
    }
  }
}

template <typename T>
HWY_INLINE void AddRows(const WeightedValues<T>& from, size_t n_rows, const RowStates& states) {
  if (from.tokens.empty()) return;
  WithRows(n_rows, [&](auto rows) HWY_ATTR {
    if (from.ahead != from.blocks) {
      AddValues<rows(), true>(from, states.data, states.stride());
    } else {
      AddValues<rows(), false>(from, states.data, states.stride());
    }
  });
}

// The weighted values of a tile of rows: together for the tokens that all of its queries see, a query at a time for
// those before and behind. Tokens that a query does not see are not touched: 0 * (whatever the pool holds there) need
// not be 0.
template <typename T>
void AddTile(const AttentionCall& call, const AttentionTask& task, size_t span, const RowTile& tile,
             WeightedValues<T> from, const RowStates& states) {
  const float* weights = from.weights;
  const TokenRange common =
      Intersect(SeenOf(call, task, tile.first_query, span), SeenOf(call, task, tile.last_query, span));
  const auto add_each = [&](auto tokens_of) HWY_ATTR {
    for (size_t query = tile.first_query; query <= tile.last_query; ++query) {
      const size_t begin = std::max(tile.begin, query * call.shape.group);
      const size_t end = std::min(tile.end, (query + 1) * call.shape.group);
      from.weights = weights + begin * kScoreStride;
      from.tokens = tokens_of(SeenOf(call, task, query, span));
      AddRows(from, end - begin, states.From(begin));
    }
  };
  if (common.empty()) return add_each([](TokenRange seen) { return seen; });
  add_each([&](TokenRange seen) { return TokenRange{.begin = seen.begin, .end = common.begin}; });
  from.weights = weights + tile.begin * kScoreStride;
  from.tokens = common;
  AddRows(from, tile.end - tile.begin, states.From(tile.begin));
  add_each([&](TokenRange seen) { return TokenRange{.begin = common.end, .end = seen.end}; });
}

template <typename T>
void AddSpan(const AttentionCall& call, const AttentionTask& task, size_t span, const SpanBlocks<T>& blocks,
             const SpanBlocks<T>& ahead, const AttentionScratch& s, const RowStates& states) {
  ForEachRowTile(task, call.shape.group, [&](const RowTile& tile) HWY_ATTR {
    AddTile<T>(call, task, span, tile,
               {.weights = s.scores,
                .blocks = &blocks,
                .ahead = tile.begin == 0 ? &ahead : &blocks,
                .tokens = {},
                .head_dim = call.kv.head_dim},
               states);
  });
}

void ScaleQueries(const AttentionCall& call, const AttentionTask& task, float* HWY_RESTRICT to) {
  const FloatTag d;
  const size_t head_dim = call.kv.head_dim;
  for (size_t row = 0; row < task.n_queries * call.shape.group; ++row, to += QueryStride(head_dim)) {
    const float* HWY_RESTRICT from = call.q.Row(task.first_row + row / call.shape.group) +
                                     (task.kv_head * call.shape.group + row % call.shape.group) * head_dim;
    size_t i = 0;
    for (; i + kLanes <= head_dim; i += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, from + i), hn::Set(d, call.scale)), d, to + i);
    }
    for (; i < head_dim; ++i) to[i] = from[i] * call.scale;
  }
}

template <typename T>
void WriteOutputs(const AttentionCall& call, const AttentionTask& task, const RowStates& states) {
  const size_t head_dim = call.kv.head_dim;
  const size_t group = call.shape.group;
  for (size_t row = 0; row < task.n_queries * group; ++row) {
    const float* HWY_RESTRICT from = states.Sums(row);
    float* HWY_RESTRICT to =
        call.out.Row(task.first_row + row / group) + (task.kv_head * group + row % group) * head_dim;
    const float inverse = 1.0F / states.Total(row);
    ForDimPairs(0, head_dim, [&](auto d, size_t dim) HWY_ATTR {
      const auto v0 = hn::Mul(hn::LoadU(d, from + dim), hn::Set(d, inverse));
      const auto v1 = hn::Mul(hn::LoadU(d, from + dim + hn::MaxLanes(d)), hn::Set(d, inverse));
      StoreDims(d, v0, v1, static_cast<const T*>(nullptr), to + dim);
    });
  }
}

// `next` (or null) is what this thread does after it: its first span is asked for during the task's last.
template <typename T>
void RunTask(const AttentionCall& call, const AttentionTask& task, const AttentionTask* next,
             const AttentionScratch& s) {
  const size_t n_rows = task.n_queries * call.shape.group;
  const size_t first_span = task.tokens.begin / kSpanTokens;
  const size_t end_span = (task.tokens.end + kSpanTokens - 1) / kSpanTokens;
  constexpr size_t kPartSpans = kAttentionPartTokens / kSpanTokens;
  ScaleQueries(call, task, s.q);
  SpanBlocks<T> blocks = BlocksOf<T>(call, task, first_span);
  RowStates states = task.n_parts > 1 ? call.parts.From(task.first_state) : s.whole;
  for (size_t span = first_span; span < end_span; ++span) {
    if (span == first_span || span % kPartSpans == 0) Clear(states, n_rows);
    SpanBlocks<T> ahead = blocks;
    if (span + 1 < end_span) {
      ahead = BlocksOf<T>(call, task, span + 1);
    } else if (next != nullptr) {
      ahead = BlocksOf<T>(call, *next, next->tokens.begin / kSpanTokens);
    }
    ScoreSpan<T>(call, task, span, blocks, ahead, s);
    UpdateSpan(call, task, span, s, states);
    AddSpan<T>(call, task, span, blocks, ahead, s, states);
    blocks = ahead;
    const bool part_ends = (span + 1) % kPartSpans == 0 || span + 1 == end_span;
    if (!part_ends || task.n_parts > 1) continue;
    if (states.data == s.part.data) {
      for (size_t row = 0; row < n_rows; ++row) MergeRow(s.part, row, s.whole, row);
    }
    states = s.part;
  }
  if (task.n_parts == 1) WriteOutputs<T>(call, task, s.whole);
}

void RunAttentionTask(const AttentionCall& call, const AttentionTask& task, const AttentionTask* next,
                      const AttentionScratch& s) {
  if (call.kv.dtype == DType::kBf16) {
    RunTask<Bf16>(call, task, next, s);
  } else {
    RunTask<float>(call, task, next, s);
  }
}

// Merges the parts of one query and kv head in the order of their tokens, as RunTask does for those of a tile. `last`
// is the task of the last part.
void MergeParts(const AttentionCall& call, const AttentionTask& last) {
  const size_t group = call.shape.group;
  const RowStates whole = call.parts.From(last.first_state - last.part * group);
  for (size_t row = 0; row < group; ++row) {
    for (size_t part = 1; part < last.n_parts; ++part) MergeRow(whole, part * group + row, whole, row);
  }
  if (call.kv.dtype == DType::kBf16) {
    WriteOutputs<Bf16>(call, last, whole);
  } else {
    WriteOutputs<float>(call, last, whole);
  }
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace df::kernels::cpu {
namespace {

HWY_EXPORT(RunAttentionTask);
HWY_EXPORT(MergeParts);

// Multiply-adds of a key, or of a value, that are worth a thread: 13 us, as in base/thread_pool.h; in decode the keys
// and values of 260 tokens of one head of 128 dims.
constexpr size_t kMinShareProducts = 200'000;

size_t RoundUp16(size_t n) { return (n + 15) / 16 * 16; }

struct ScratchLayout {
  size_t rows = 0;
  size_t head_dim = 0;
  size_t padded = 0;

  size_t q_floats() const { return RoundUp16(rows * QueryStride(head_dim)); }
  size_t score_floats() const { return RoundUp16(rows * kScoreStride); }
  size_t key_floats() const { return kSpanTokens * head_dim; }
  size_t state_floats() const { return rows * RowStates::Stride(padded); }
  size_t floats() const { return q_floats() + score_floats() + key_floats() + 2 * state_floats(); }

  AttentionScratch At(float* memory) const {
    AttentionScratch s;
    s.q = memory;
    s.scores = s.q + q_floats();
    s.keys = s.scores + score_floats();
    s.whole = {.data = s.keys + key_floats(), .padded = padded};
    s.part = {.data = s.whole.data + state_floats(), .padded = padded};
    return s;
  }
};

// How many of the call's tasks there are, and what they cost.
struct Totals {
  size_t cost = 0;
  size_t states = 0;
};

Totals TotalsOf(std::span<const SequenceSegment> segments, const AttentionShape& shape) {
  Totals totals;
  totals.states =
      ForEachTask(segments, shape, [&](const AttentionTask& task) { totals.cost += TaskCost(task, shape.group); });
  return totals;
}

// Share s of n takes the tasks whose middle lies in its n-th of the whole cost.
void RunShare(const AttentionCall& call, std::span<const SequenceSegment> segments, size_t share, size_t n_shares,
              size_t total_cost, const AttentionScratch& scratch) {
  size_t before = 0;
  AttentionTask pending;
  ForEachTask(segments, call.shape, [&](const AttentionTask& task) {
    const size_t cost = TaskCost(task, call.shape.group);
    const bool own = (before + cost / 2) * n_shares / total_cost == share;
    before += cost;
    if (!own) return;
    if (pending.segment != nullptr) HWY_DYNAMIC_DISPATCH(RunAttentionTask)(call, pending, &task, scratch);
    pending = task;
  });
  if (pending.segment != nullptr) HWY_DYNAMIC_DISPATCH(RunAttentionTask)(call, pending, nullptr, scratch);
}

}  // namespace

void Attention(KernelContext& context, std::span<const SequenceSegment> segments, MatView<const float> q,
               const KvLayerView& kv, const AttentionOptions& options, MatView<float> out) {
  const size_t group = options.n_heads / kv.n_kv_heads;
  const size_t padded = RoundUp16(kv.head_dim);
  AttentionCall call = {.q = q,
                        .kv = kv,
                        .shape = {.n_kv_heads = kv.n_kv_heads, .group = group, .window = options.window},
                        .scale = options.scale,
                        .out = out,
                        .parts = {}};
  const Totals totals = TotalsOf(segments, call.shape);
  if (totals.cost == 0) return;
  const size_t n_shares =
      std::clamp<size_t>(totals.cost * kv.head_dim / kMinShareProducts, 1, context.pool.n_threads());
  const ScratchLayout layout = {.rows = QueriesPerTask(group) * group, .head_dim = kv.head_dim, .padded = padded};
  const size_t scratch_floats = RoundUp16(layout.floats());
  float* memory =
      context.scratch.Get<float>(kSlotAttention, n_shares * scratch_floats + totals.states * RowStates::Stride(padded));
  call.parts = {.data = memory + n_shares * scratch_floats, .padded = padded};
  context.pool.ParallelFor(n_shares, 1, [&](size_t begin, size_t end, size_t /*thread*/) {
    for (size_t share = begin; share < end; ++share) {
      RunShare(call, segments, share, n_shares, totals.cost, layout.At(memory + share * scratch_floats));
    }
  });
  // A hundredth of the work or less: one row of state a part of 256 tokens.
  if (totals.states == 0) return;
  ForEachTask(segments, call.shape, [&](const AttentionTask& task) {
    if (task.part + 1 == task.n_parts && task.n_parts > 1) HWY_DYNAMIC_DISPATCH(MergeParts)(call, task);
  });
}

}  // namespace df::kernels::cpu
#endif  // HWY_ONCE
