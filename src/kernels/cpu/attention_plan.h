// How one Attention call is cut into tasks, and which tokens a query row sees: shared by all vector targets.
//
// A task is (segment, kv head, tile of consecutive queries): its rows are the tile's queries times the query heads that
// share the kv head, so that keys and values are read once for all of them. The context of a single query is cut
// further, a task a part. Tasks write disjoint outputs, and a row's bits do not depend on its tile: tiles and threads
// are free choices.
#ifndef DELTAFOLD_KERNELS_CPU_ATTENTION_PLAN_H_
#define DELTAFOLD_KERNELS_CPU_ATTENTION_PLAN_H_

#include <algorithm>
#include <cstddef>
#include <span>

#include "kernels/attention.h"

namespace df::kernels::cpu {

// Softmax state is updated once per span. 64: the update (one exp for the rescaling, one multiply per accumulator) is
// then 1/64 of the work, and 64 scores are four independent vectors at 512 bits. A span starts at a multiple of 64
// tokens.
inline constexpr size_t kSpanTokens = 64;
inline constexpr size_t kSpanBlocks = kSpanTokens / kKvBlockTokens;
static_assert(kAttentionPartTokens % kSpanTokens == 0);
// 48 rows of queries at head_dim 128 are 24 KB, which stay in the first cache beside a block of keys (4 KB in bf16);
// and a multiple of the six rows of the inner loops for the usual groups of 1, 2, 3, 4, 6 and 8 heads.
inline constexpr size_t kTaskRows = 48;

// From one row to the next, in floats. Broadcasts of a tile's rows follow each other: 8 bytes out of step they come
// from different banks of the first cache, of which one serves a load a cycle (Zen: 8 banks by address bits 3 to 5).
inline constexpr size_t kScoreStride = kSpanTokens + 2;
constexpr size_t QueryStride(size_t head_dim) { return head_dim + 2; }

struct TokenRange {
  size_t begin = 0;
  size_t end = 0;
  bool empty() const { return begin >= end; }
  size_t size() const { return empty() ? 0 : end - begin; }
};

inline TokenRange Intersect(TokenRange a, TokenRange b) {
  return {.begin = std::max(a.begin, b.begin), .end = std::min(a.end, b.end)};
}

// Tokens that the query at `position` sees.
inline TokenRange VisibleTokens(size_t position, size_t window) {
  const size_t end = position + 1;
  return {.begin = window != 0 && end > window ? end - window : 0, .end = end};
}

// Softmax states of some rows: what a row has gathered of its context so far.
struct RowStates {
  float* data = nullptr;
  size_t padded = 0;  // head_dim rounded up to 16

  static size_t Stride(size_t padded) { return padded + 16; }
  size_t stride() const { return Stride(padded); }
  float* Sums(size_t row) const { return data + row * stride(); }   // [padded] weighted values
  float& Largest(size_t row) const { return Sums(row)[padded]; }    // score
  float& Total(size_t row) const { return Sums(row)[padded + 1]; }  // of weights; 0 = nothing seen
  RowStates From(size_t row) const { return {.data = Sums(row), .padded = padded}; }
};

struct AttentionTask {
  const SequenceSegment* segment = nullptr;
  size_t kv_head = 0;
  size_t first_row = 0;       // of q and out
  size_t first_position = 0;  // of that row
  size_t n_queries = 0;
  TokenRange tokens;       // to be read: what any of the queries sees, within the task's part if there are several
  size_t part = 0;         // of n_parts; tasks of parts leave states, which are merged once all are done
  size_t n_parts = 1;      // 1: the task writes its outputs itself
  size_t first_state = 0;  // of the task's rows, where n_parts > 1
};

struct AttentionShape {
  size_t n_kv_heads = 0;
  size_t group = 1;  // query heads of one kv head
  size_t window = 0;
};

inline size_t QueriesPerTask(size_t group) { return std::max<size_t>(1, kTaskRows / group); }

// Tasks of one tile of queries: as many as its context has parts if it is a single query, else one.
template <typename Visit>
void VisitTile(const AttentionShape& shape, AttentionTask task, size_t& n_states, const Visit& visit) {
  const TokenRange seen = {.begin = VisibleTokens(task.first_position, shape.window).begin,
                           .end = task.first_position + task.n_queries};
  const size_t first_part = seen.begin / kAttentionPartTokens;
  task.tokens = seen;
  task.n_parts = task.n_queries > 1 ? 1 : (seen.end + kAttentionPartTokens - 1) / kAttentionPartTokens - first_part;
  for (task.part = 0; task.part < task.n_parts; ++task.part) {
    const size_t first = (first_part + task.part) * kAttentionPartTokens;
    if (task.n_parts > 1) task.tokens = Intersect(seen, {.begin = first, .end = first + kAttentionPartTokens});
    task.first_state = n_states;
    if (task.n_parts > 1) n_states += shape.group;
    visit(task);
  }
}

// Calls visit(task) for all tasks in a fixed order: the tiles, or parts, of one kv head follow each other. Returns how
// many states of rows the tasks of parts leave.
template <typename Visit>
size_t ForEachTask(std::span<const SequenceSegment> segments, const AttentionShape& shape, const Visit& visit) {
  const size_t tile = QueriesPerTask(shape.group);
  size_t n_states = 0;
  for (const SequenceSegment& segment : segments) {
    for (size_t kv_head = 0; kv_head < shape.n_kv_heads; ++kv_head) {
      for (size_t row = segment.begin; row < segment.end; row += tile) {
        AttentionTask task;
        task.segment = &segment;
        task.kv_head = kv_head;
        task.first_row = row;
        task.first_position = segment.position + row - segment.begin;
        task.n_queries = std::min(tile, segment.end - row);
        VisitTile(shape, task, n_states, visit);
      }
    }
  }
  return n_states;
}

// Relative time of a task: products of its rows, plus reading its keys and values, which takes as long as those of some
// 12 rows (512 bytes a token at 6 bytes a cycle, against 32 multiply-adds a row and token, two a cycle, at 128 dims).
inline size_t TaskCost(const AttentionTask& task, size_t group) {
  return std::max<size_t>(task.n_queries * group, 6) * task.tokens.size();
}

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_ATTENTION_PLAN_H_
