// How the rows of one Linear call are grouped: which rows share a weight tile, where their packed forms lie in scratch.
//
//   set    rows multiplied by the same weight in one pass: all decode rows of the base, all rows of one raw
//   replacement,
//          up to kMaxPrefillRows prefill rows with the same signs
//   run    the rows of one segment within a set: they share a delta
//   group  rows that one register kernel takes at once; their x is packed as [d_in padded to pairs][group size]
//
// Grouping never changes a bit of a row: kernels do the same operations for a row in any group.
#ifndef DELTAFOLD_KERNELS_CPU_LINEAR_PLAN_H_
#define DELTAFOLD_KERNELS_CPU_LINEAR_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/linear.h"
#include "kernels/linear_path.h"

namespace df::kernels::cpu {

// Rows of x that stay in the second-level cache beside a weight panel: 256 rows x 256 columns x 4 bytes = 256 KB.
inline constexpr size_t kMaxPrefillRows = 256;

// What depends on the vector target.
struct PlanOptions {
  size_t max_decode_group = 1;   // rows of the largest register kernel on tiles
  size_t max_prefill_group = 1;  // and on panels
  size_t octet_bytes = 64;       // sign tables: of 8 columns, and of a block beside those (sign_tables-inl.h)
  size_t block_bytes = 64;
  LinearPaths paths = {};
  KernelOptions kernels = {};
};

// What Linear was called with.
struct LinearCall {
  const LinearWeight* base = nullptr;
  std::span<const LinearSegment> segments;
  MatView<const float> x;
  MatView<float> y;
};

struct LinearRun {
  const LinearSegment* segment = nullptr;
  size_t first_row = 0;  // of x and y
  size_t n_rows = 0;
  size_t position = 0;  // of first_row within the set
  size_t d_out = 0;
  float* low_rank = nullptr;  // scale * x A^T: for each pair its groups' [rank padded to pairs][group size]

  const PackedDelta* delta() const { return segment->delta; }
};

struct RowGroup {
  size_t position = 0;  // of its first row within the set
  size_t size = 0;
  float* x = nullptr;  // [padded_cols][size]; of a bf16 set [padded_cols / 2][size] pairs
};

// One plane's signs for one decode row.
struct SignItem {
  const PackedPlane* plane = nullptr;
  const uint8_t* tables = nullptr;  // [ceil(d_in/512)] blocks; planes without column scales share a row's
  size_t position = 0;              // of the row within the set
  size_t n_tiles = 0;               // of the delta
};

struct LinearSet {
  const PackedWeight* weight = nullptr;
  const PackedDelta* signs = nullptr;  // prefill: planes folded into the panel; null = none
  std::span<const LinearRun> runs;
  std::span<const RowGroup> groups;
  std::span<const size_t> rows;     // row of x at each position
  std::span<const SignItem> items;  // decode: rows that share a plane lie together
  size_t d_out = 0;                 // largest of its runs
  bool is_bf16 = false;             // prefill: multiplied in pairs of bf16
};

// One row's sign tables to build.
struct TableItem {
  const float* x = nullptr;
  const float* col_scale = nullptr;  // null = ones
  uint8_t* tables = nullptr;
};

// One low-rank pair of one run: products [first, first + rank) of all those of the call.
struct LowRankItem {
  const LinearRun* run = nullptr;
  const PackedLowRank* pair = nullptr;
  float* out = nullptr;
  size_t first = 0;
};

struct LinearPlan {
  MatView<const float> x;
  MatView<float> y;
  const LinearWeight* base = nullptr;
  size_t d_in = 0;
  std::span<const LinearSet> decode;
  std::span<const LinearSet> prefill;
  std::span<const RowGroup> groups;   // of all sets
  std::span<const size_t> group_set;  // set of each group, decode sets counted first
  std::span<const TableItem> tables;
  std::span<const LowRankItem> low_rank;
  size_t n_low_rank_products = 0;

  size_t padded_cols() const { return (d_in + 1) / 2 * 2; }
  const LinearSet& Set(size_t i) const { return i < decode.size() ? decode[i] : prefill[i - decode.size()]; }
};

// n rows in ceil(n / max_group) groups of nearly equal size; group i is [GroupBegin(i), GroupBegin(i + 1)).
constexpr size_t GroupCount(size_t n, size_t max_group) { return (n + max_group - 1) / max_group; }
constexpr size_t GroupBegin(size_t n, size_t n_groups, size_t i) { return n * i / n_groups; }

// Columns of a low-rank pair's second product.
constexpr size_t PaddedRank(size_t rank) { return (rank + 1) / 2 * 2; }

// The plan's arrays lie in context.scratch until the next call.
LinearPlan MakePlan(KernelContext& context, const PlanOptions& options, const LinearCall& call);

}  // namespace df::kernels::cpu

#endif  // DELTAFOLD_KERNELS_CPU_LINEAR_PLAN_H_
