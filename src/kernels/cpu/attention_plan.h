// How one Attention call is cut into tasks, and which tokens a query row sees: shared by all vector targets.
//
// A task is (segment, kv head, tile of consecutive queries): its rows are the tile's queries times the query heads that
// share the kv head, so that a staged block of keys or values serves all of them. Tasks write disjoint outputs, and a
// row's bits do not depend on its tile: tiles and threads are free choices.
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
// 64 rows of queries and accumulators at head_dim 128 are 64 KB (L2), and staging a block (about 350 cycles) is then 4
// % of its products (64 rows x 2 x 64 cycles).
inline constexpr size_t kTaskRows = 64;

struct TokenRange {
  size_t begin = 0;
  size_t end = 0;
  bool empty() const { return begin >= end; }
};

struct AttentionTask {
  const SequenceSegment* segment = nullptr;
  size_t kv_head = 0;
  size_t first_row = 0;       // of q and out
  size_t first_position = 0;  // of that row
  size_t n_queries = 0;
  bool covers_segment = false;  // no other tile of this kv head follows or went before
};

// Tokens that the query at `position` sees.
inline TokenRange VisibleTokens(size_t position, size_t window) {
  const size_t end = position + 1;
  return {.begin = window != 0 && end > window ? end - window : 0, .end = end};
}

inline TokenRange Intersect(TokenRange a, TokenRange b) {
  return {.begin = std::max(a.begin, b.begin), .end = std::min(a.end, b.end)};
}

// Queries [begin, end) of the task that see all, or some, of the tokens of `block`.
struct QueryRange {
  size_t begin = 0;
  size_t end = 0;
};

inline QueryRange QueriesAt(const AttentionTask& task, size_t first, size_t last) {
  const auto clip = [&](size_t position) {
    return position <= task.first_position ? 0 : std::min(position - task.first_position, task.n_queries);
  };
  const size_t begin = clip(first);
  return {.begin = begin, .end = std::max(begin, clip(last))};
}

// A query at i sees some of the block [t, t+16) iff t <= i < t + 15 + window (window 0: no upper limit).
inline QueryRange QueriesSeeingSome(const AttentionTask& task, size_t block, size_t window) {
  const size_t t = block * kKvBlockTokens;
  const size_t last = window == 0 ? task.first_position + task.n_queries : t + kKvBlockTokens - 1 + window;
  return QueriesAt(task, t, last);
}

// ... and all of it iff t + 15 <= i < t + window.
inline QueryRange QueriesSeeingAll(const AttentionTask& task, size_t block, size_t window) {
  const size_t t = block * kKvBlockTokens;
  const size_t last = window == 0 ? task.first_position + task.n_queries : t + window;
  return QueriesAt(task, t + kKvBlockTokens - 1, last);
}

// The tokens that any query of the task sees.
inline TokenRange TaskTokens(const AttentionTask& task, size_t window) {
  return {.begin = VisibleTokens(task.first_position, window).begin, .end = task.first_position + task.n_queries};
}

inline size_t QueriesPerTask(size_t group) { return std::max<size_t>(1, kTaskRows / group); }

// Calls visit(task) for all tasks in a fixed order: the tiles of one kv head follow each other.
template <typename Visit>
void ForEachTask(std::span<const SequenceSegment> segments, size_t n_kv_heads, size_t group, const Visit& visit) {
  const size_t tile = QueriesPerTask(group);
  for (const SequenceSegment& segment : segments) {
    for (size_t kv_head = 0; kv_head < n_kv_heads; ++kv_head) {
      for (size_t row = segment.begin; row < segment.end; row += tile) {
        visit(AttentionTask{.segment = &segment,
                            .kv_head = kv_head,
                            .first_row = row,
                            .first_position = segment.position + row - segment.begin,
                            .n_queries = std::min(tile, segment.end - row),
                            .covers_segment = segment.end - segment.begin <= tile});
      }
    }
  }
}

// Relative time of a task: products of its rows, plus staging, which costs as much as about 4 rows.
inline size_t TaskCost(const AttentionTask& task, size_t group, size_t window) {
  const TokenRange tokens = TaskTokens(task, window);
  return (task.n_queries * group + 4) * (tokens.end - tokens.begin);
}

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_ATTENTION_PLAN_H_
