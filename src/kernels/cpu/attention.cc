#include "kernels/cpu/attention.h"

#include <cstring>
#include <limits>
#include <type_traits>

#include "base/float16.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/scratch_slots.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"
#include "kernels/cpu/attention_tile-inl.h"
#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/simd-inl.h"

#ifndef DELTAFOLD_KERNELS_CPU_ATTENTION_TYPES_
#define DELTAFOLD_KERNELS_CPU_ATTENTION_TYPES_

namespace df::kernels::cpu {

// One call of Attention, as its tasks see it.
struct AttentionCall {
  MatView<const float> q;
  KvLayerView kv;
  AttentionOptions options;
  MatView<float> out;
  size_t group = 1;   // query heads of one kv head
  size_t padded = 0;  // head_dim rounded up to 16: whole vectors on every target
};

// Working memory of one thread; every part 64-byte aligned. A row is a query of one head.
struct AttentionScratch {
  float* q = nullptr;        // [rows][head_dim] scaled queries
  float* acc = nullptr;      // [rows][padded] weighted values so far
  float* scores = nullptr;   // [rows][kSpanTokens]
  float* largest = nullptr;  // [rows] largest score so far
  float* total = nullptr;    // [rows] sum of weights so far
  float* tile = nullptr;     // [16][padded] staged keys or values
};

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_ATTENTION_TYPES_

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

constexpr size_t kSpanBlocks = kSpanTokens / kKvBlockTokens;

template <size_t kRows>
void ScoreRange(const float* q, size_t n_rows, size_t head_dim, const float* tile, float* scores) {
  size_t row = 0;
  for (; row + kRows <= n_rows; row += kRows) {
    ScoreRows<kRows, kSpanTokens>(q + row * head_dim, head_dim, tile, scores + row * kSpanTokens);
  }
  if constexpr (kRows > 1) {
    ScoreRange<kRows / 2>(q + row * head_dim, n_rows - row, head_dim, tile, scores + row * kSpanTokens);
  }
}

template <size_t kRows, typename T>
void AddValuesRange(const float* weights, size_t n_rows, const WeightedValues<T>& from, float* acc, size_t padded) {
  size_t row = 0;
  for (; row + kRows <= n_rows; row += kRows) {
    AddValues<kRows, kSpanTokens>(weights + row * kSpanTokens, from, acc + row * padded, padded);
  }
  if constexpr (kRows > 1) {
    AddValuesRange<kRows / 2>(weights + row * kSpanTokens, n_rows - row, from, acc + row * padded, padded);
  }
}

// Online softmax (Milakov and Gimelshein 2018): folds one span of scores, of which `seen` count, into a row's state and
// leaves the weights exp(score - largest) in their place.
HWY_INLINE void UpdateRow(TokenRange seen, float* HWY_RESTRICT scores, float* HWY_RESTRICT acc, size_t padded,
                          float* HWY_RESTRICT largest, float* HWY_RESTRICT total) {
  const FloatTag d;
  const float lowest = -std::numeric_limits<float>::infinity();
  for (size_t t = 0; t < seen.begin; ++t) scores[t] = lowest;
  for (size_t t = seen.end; t < kSpanTokens; ++t) scores[t] = lowest;
  FloatVec top = hn::Set(d, *largest);
  for (size_t t = 0; t < kSpanTokens; t += kLanes) top = hn::Max(top, hn::Load(d, scores + t));
  top = hn::MaxOfLanes(d, top);
  FloatVec sum = hn::Zero(d);
  for (size_t t = 0; t < kSpanTokens; t += kLanes) {
    const FloatVec weight = ExpWeight(d, hn::Sub(hn::Load(d, scores + t), top));
    hn::Store(weight, d, scores + t);
    sum = hn::Add(sum, weight);
  }
  sum = hn::SumOfLanes(d, sum);
  // An unchanged top would scale by exp(0) = 1, exactly nothing.
  if (hn::GetLane(top) == *largest) {
    *total += hn::GetLane(sum);
    return;
  }
  const FloatVec scale = ExpWeight(d, hn::Sub(hn::Set(d, *largest), top));
  *total = hn::GetLane(hn::MulAdd(hn::Set(d, *total), scale, sum));
  *largest = hn::GetLane(top);
  for (size_t dim = 0; dim < padded; dim += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, acc + dim), scale), d, acc + dim);
  }
}

// Blocks [begin, end) of a span, of those [task_begin, task_end) that the task reads.
struct BlockRange {
  size_t begin = 0;
  size_t end = 0;
  size_t task_begin = 0;
  size_t task_end = 0;
};

template <typename T>
const T* BlockOf(const void* pool, const AttentionTask& task, const KvLayerView& kv, size_t block, size_t kv_head) {
  const auto id = static_cast<size_t>(task.segment->block_table[block]);
  return static_cast<const T*>(pool) + (id * kv.n_kv_heads + kv_head) * kKvBlockTokens * kv.head_dim;
}

// Blocks are asked for a span (some 500 ns of decoding) before they are staged: more than memory takes to answer, less
// than the first cache holds.
constexpr size_t kBlocksAhead = kSpanBlocks;

// What to ask for while `block` is staged; behind the task's last block come the first of the next kv head, if that is
// the next task. Null if nothing.
template <typename T>
const T* AheadOrNull(const void* pool, const AttentionTask& task, const KvLayerView& kv, size_t block,
                     const BlockRange& blocks) {
  const size_t ahead = block + kBlocksAhead;
  if (ahead < blocks.task_end) return BlockOf<T>(pool, task, kv, ahead, task.kv_head);
  const size_t wrapped = blocks.task_begin + ahead - blocks.task_end;
  if (!task.covers_segment || task.kv_head + 1 == kv.n_kv_heads || wrapped >= blocks.task_end) return nullptr;
  return BlockOf<T>(pool, task, kv, wrapped, task.kv_head + 1);
}

template <typename T>
void ScoreSpan(const AttentionCall& call, const AttentionTask& task, BlockRange blocks, const AttentionScratch& s) {
  const size_t head_dim = call.kv.head_dim;
  for (size_t block = blocks.begin; block < blocks.end; ++block) {
    StageKeys(BlockOf<T>(call.kv.keys, task, call.kv, block, task.kv_head), head_dim,
              AheadOrNull<T>(call.kv.keys, task, call.kv, block, blocks), s.tile);
    const QueryRange some = QueriesSeeingSome(task, block, call.options.window);
    const size_t row = some.begin * call.group;
    ScoreRange<kScoreRows>(s.q + row * head_dim, (some.end - some.begin) * call.group, head_dim, s.tile,
                           s.scores + row * kSpanTokens + block % kSpanBlocks * kKvBlockTokens);
  }
}

void UpdateSpan(const AttentionCall& call, const AttentionTask& task, size_t span, const AttentionScratch& s) {
  const size_t first = span * kSpanTokens;
  for (size_t query = 0; query < task.n_queries; ++query) {
    const TokenRange seen = Intersect(VisibleTokens(task.first_position + query, call.options.window),
                                      {.begin = first, .end = first + kSpanTokens});
    if (seen.empty()) continue;
    for (size_t row = query * call.group; row < (query + 1) * call.group; ++row) {
      UpdateRow({.begin = seen.begin - first, .end = seen.end - first}, s.scores + row * kSpanTokens,
                s.acc + row * call.padded, call.padded, s.largest + row, s.total + row);
    }
  }
}

// Rows of queries that see only part of a block, one query at a time: tokens they do not see are not touched, as
// 0 * (whatever the pool holds there) need not be 0.
template <typename T>
void AddPartialBlock(const AttentionCall& call, const AttentionTask& task, size_t block, QueryRange queries,
                     const WeightedValues<T>& whole, const AttentionScratch& s) {
  const size_t first = block * kKvBlockTokens;
  for (size_t query = queries.begin; query < queries.end; ++query) {
    const TokenRange seen = Intersect(VisibleTokens(task.first_position + query, call.options.window),
                                      {.begin = first, .end = first + kKvBlockTokens});
    if (seen.empty()) continue;
    const WeightedValues<T> part = {.values = whole.values + (seen.begin - first) * whole.stride,
                                    .stride = whole.stride,
                                    .n_tokens = seen.end - seen.begin};
    const size_t row = query * call.group;
    AddValuesRange<kScoreRows>(s.scores + row * kSpanTokens + seen.begin % kSpanTokens, call.group, part,
                               s.acc + row * call.padded, call.padded);
  }
}

// Adds the values of one block to all rows that see any of it.
template <typename T>
void AddBlock(const AttentionCall& call, const AttentionTask& task, size_t block, const WeightedValues<T>& whole,
              const AttentionScratch& s) {
  const QueryRange some = QueriesSeeingSome(task, block, call.options.window);
  const QueryRange all = QueriesSeeingAll(task, block, call.options.window);
  if (all.begin == all.end) return AddPartialBlock(call, task, block, some, whole, s);
  AddPartialBlock(call, task, block, {.begin = some.begin, .end = all.begin}, whole, s);
  AddPartialBlock(call, task, block, {.begin = all.end, .end = some.end}, whole, s);
  const size_t row = all.begin * call.group;
  AddValuesRange<kScoreRows>(s.scores + row * kSpanTokens + block % kSpanBlocks * kKvBlockTokens,
                             (all.end - all.begin) * call.group, whole, s.acc + row * call.padded, call.padded);
}

// Rows up to which bf16 values are widened at each use: staging costs a store and a load more.
constexpr size_t kDirectRows = 4;

template <typename T>
void AddSpan(const AttentionCall& call, const AttentionTask& task, BlockRange blocks, const AttentionScratch& s) {
  const size_t head_dim = call.kv.head_dim;
  const bool few_rows = task.n_queries * call.group <= kDirectRows;
  const bool direct = head_dim == call.padded && (std::is_same_v<T, float> || few_rows);
  for (size_t block = blocks.begin; block < blocks.end; ++block) {
    const T* values = BlockOf<T>(call.kv.values, task, call.kv, block, task.kv_head);
    const T* next = AheadOrNull<T>(call.kv.values, task, call.kv, block, blocks);
    if (direct) {
      Prefetcher(next, head_dim * kKvBlockTokens * sizeof(T), 0).Step();
      AddBlock<T>(call, task, block, {.values = values, .stride = head_dim, .n_tokens = kKvBlockTokens}, s);
    } else {
      StageValues(values, head_dim, call.padded, next, s.tile);
      AddBlock<float>(call, task, block, {.values = s.tile, .stride = call.padded, .n_tokens = kKvBlockTokens}, s);
    }
  }
}

void StartTask(const AttentionCall& call, const AttentionTask& task, const AttentionScratch& s) {
  const FloatTag d;
  const size_t n_rows = task.n_queries * call.group;
  const size_t row_floats = call.group * call.kv.head_dim;
  for (size_t query = 0; query < task.n_queries; ++query) {
    const float* HWY_RESTRICT from = call.q.Row(task.first_row + query) + task.kv_head * row_floats;
    float* HWY_RESTRICT to = s.q + query * row_floats;
    size_t i = 0;
    for (; i + kLanes <= row_floats; i += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(d, from + i), hn::Set(d, call.options.scale)), d, to + i);
    }
    for (; i < row_floats; ++i) to[i] = from[i] * call.options.scale;
  }
  for (size_t i = 0; i < n_rows * call.padded; i += kLanes) hn::Store(hn::Zero(d), d, s.acc + i);
  std::fill(s.largest, s.largest + n_rows, -std::numeric_limits<float>::infinity());
  std::fill(s.total, s.total + n_rows, 0.0F);
}

void FinishTask(const AttentionCall& call, const AttentionTask& task, const AttentionScratch& s) {
  const FloatTag d;
  const size_t head_dim = call.kv.head_dim;
  for (size_t row = 0; row < task.n_queries * call.group; ++row) {
    const float* HWY_RESTRICT from = s.acc + row * call.padded;
    float* HWY_RESTRICT to =
        call.out.Row(task.first_row + row / call.group) + (task.kv_head * call.group + row % call.group) * head_dim;
    const float inverse = 1.0F / s.total[row];
    size_t dim = 0;
    for (; dim + kLanes <= head_dim; dim += kLanes) {
      hn::StoreU(hn::Mul(hn::Load(d, from + dim), hn::Set(d, inverse)), d, to + dim);
    }
    for (; dim < head_dim; ++dim) to[dim] = from[dim] * inverse;
  }
}

template <typename T>
void RunTask(const AttentionCall& call, const AttentionTask& task, const AttentionScratch& s) {
  const TokenRange tokens = TaskTokens(task, call.options.window);
  const size_t first_block = tokens.begin / kKvBlockTokens;
  const size_t n_blocks = (tokens.end + kKvBlockTokens - 1) / kKvBlockTokens;
  StartTask(call, task, s);
  for (size_t span = tokens.begin / kSpanTokens; span * kSpanTokens < tokens.end; ++span) {
    const BlockRange blocks = {.begin = std::max(first_block, span * kSpanBlocks),
                               .end = std::min(n_blocks, (span + 1) * kSpanBlocks),
                               .task_begin = first_block,
                               .task_end = n_blocks};
    ScoreSpan<T>(call, task, blocks, s);
    UpdateSpan(call, task, span, s);
    AddSpan<T>(call, task, blocks, s);
  }
  FinishTask(call, task, s);
}

void RunAttentionTask(const AttentionCall& call, const AttentionTask& task, const AttentionScratch& s) {
  if (call.kv.dtype == DType::kBf16) {
    RunTask<Bf16>(call, task, s);
  } else {
    RunTask<float>(call, task, s);
  }
}

// f32 to bf16, to nearest even, NaN kept: the bits of ToBf16.
void ToBf16Row(const float* HWY_RESTRICT from, size_t n, uint16_t* HWY_RESTRICT to) {
  const FloatTag d;
  const UintTag du;
  const hn::RebindToSigned<FloatTag> di;
  const hn::Rebind<uint16_t, FloatTag> d16;
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const FloatVec x = hn::LoadU(d, from + i);
    const auto bits = hn::BitCast(du, x);
    const auto tie = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(tie, hn::Set(du, 0x7FFF))));
    const auto quiet = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40));
    const auto chosen = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(x)), quiet, rounded);
    hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, chosen)), d16, to + i);
  }
  for (; i < n; ++i) to[i] = ToBf16(from[i]).bits;
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace df::kernels::cpu {
namespace {

HWY_EXPORT(RunAttentionTask);
HWY_EXPORT(ToBf16Row);

// Below this many products a call runs on the caller alone: about 5 us of work, what waking a thread may cost.
constexpr size_t kMinParallelProducts = 200'000;

size_t RoundUp16(size_t n) { return (n + 15) / 16 * 16; }

size_t ScratchFloats(const AttentionCall& call) {
  const size_t rows = RoundUp16(QueriesPerTask(call.group) * call.group);
  return RoundUp16(rows * call.kv.head_dim) + rows * (call.padded + kSpanTokens + 2) + call.padded * kKvBlockTokens;
}

AttentionScratch LayOutScratch(const AttentionCall& call, float* memory) {
  const size_t rows = RoundUp16(QueriesPerTask(call.group) * call.group);
  AttentionScratch s;
  s.q = memory;
  s.acc = s.q + RoundUp16(rows * call.kv.head_dim);
  s.scores = s.acc + rows * call.padded;
  s.largest = s.scores + rows * kSpanTokens;
  s.total = s.largest + rows;
  s.tile = s.total + rows;
  return s;
}

void StoreRow(const KvLayerView& kv, void* pool, size_t at, const float* from) {
  if (kv.dtype == DType::kBf16) {
    HWY_DYNAMIC_DISPATCH(ToBf16Row)(from, kv.head_dim, static_cast<uint16_t*>(pool) + at);
  } else {
    std::memcpy(static_cast<float*>(pool) + at, from, kv.head_dim * sizeof(float));
  }
}

}  // namespace

void WriteKv(KernelContext& context, std::span<const SequenceSegment> segments, MatView<const float> k,
             MatView<const float> v, const KvLayerView& kv) {
  // 16 rows: a few microseconds of copying.
  context.pool.ParallelFor(k.rows, 16, [&](size_t begin, size_t end, size_t /*thread*/) {
    for (const SequenceSegment& segment : segments) {
      for (size_t row = std::max(begin, segment.begin); row < std::min(end, segment.end); ++row) {
        const size_t position = segment.position + row - segment.begin;
        const auto block = static_cast<size_t>(segment.block_table[position / kKvBlockTokens]);
        for (size_t head = 0; head < kv.n_kv_heads; ++head) {
          const size_t token = (block * kv.n_kv_heads + head) * kKvBlockTokens + position % kKvBlockTokens;
          StoreRow(kv, kv.keys, token * kv.head_dim, k.Row(row) + head * kv.head_dim);
          StoreRow(kv, kv.values, token * kv.head_dim, v.Row(row) + head * kv.head_dim);
        }
      }
    }
  });
}

void Attention(KernelContext& context, std::span<const SequenceSegment> segments, MatView<const float> q,
               const KvLayerView& kv, const AttentionOptions& options, MatView<float> out) {
  const AttentionCall call = {.q = q,
                              .kv = kv,
                              .options = options,
                              .out = out,
                              .group = options.n_heads / kv.n_kv_heads,
                              .padded = RoundUp16(kv.head_dim)};
  size_t total = 0;
  const auto cost = [&](const AttentionTask& task) { return TaskCost(task, call.group, options.window); };
  ForEachTask(segments, kv.n_kv_heads, call.group, [&](const AttentionTask& task) { total += cost(task); });
  if (total == 0) return;
  const size_t n_shares = total * kv.head_dim < kMinParallelProducts ? 1 : context.pool.n_threads();
  const size_t scratch_floats = ScratchFloats(call);
  float* memory = context.scratch.Get<float>(kSlotAttention, n_shares * scratch_floats);
  // Share s of n takes the tasks whose middle lies in its n-th of the whole cost.
  context.pool.ParallelFor(n_shares, 1, [&](size_t begin, size_t end, size_t /*thread*/) {
    const AttentionScratch scratch = LayOutScratch(call, memory + begin * scratch_floats);
    size_t before = 0;
    ForEachTask(segments, kv.n_kv_heads, call.group, [&](const AttentionTask& task) {
      const size_t share = (before + cost(task) / 2) * n_shares / total;
      before += cost(task);
      if (share >= begin && share < end) HWY_DYNAMIC_DISPATCH(RunAttentionTask)(call, task, scratch);
    });
  });
}

}  // namespace df::kernels::cpu
#endif  // HWY_ONCE
