#include "kernels/cpu/linear_plan.h"

#include <algorithm>

#include "kernels/scratch_slots.h"

namespace df::kernels::cpu {
namespace {

bool HasPlanes(const LinearSegment& segment) { return segment.delta != nullptr && !segment.delta->planes.empty(); }
bool HasRaw(const LinearSegment& segment) { return segment.delta != nullptr && segment.delta->raw.has_value(); }
size_t RowsOf(const LinearSegment& segment) { return segment.end - segment.begin; }

// Tables of a row: planes share one unless a column scale makes their inputs differ.
size_t TableCount(const PackedDelta& delta) {
  const bool scaled = std::any_of(delta.planes.begin(), delta.planes.end(),
                                  [](const PackedPlane& plane) { return !plane.col_scale.empty(); });
  return scaled ? delta.planes.size() : 1;
}

// Upper bounds of what a call needs.
struct Sizes {
  size_t n_rows = 0;
  size_t n_tables = 0;
  size_t n_items = 0;
  size_t n_low_rank = 0;
  size_t low_rank_floats = 0;
};

Sizes Measure(std::span<const LinearSegment> segments, const PlanOptions& options) {
  Sizes sizes;
  for (const LinearSegment& segment : segments) {
    const size_t n = RowsOf(segment);
    sizes.n_rows += n;
    if (segment.delta == nullptr) continue;
    if (HasPlanes(segment) && PathOf(options.paths, segment) == LinearPath::kTables) {
      sizes.n_tables += n * TableCount(*segment.delta);
      sizes.n_items += n * segment.delta->planes.size();
    }
    for (const PackedLowRank& pair : segment.delta->low_rank) {
      sizes.n_low_rank +=
          n / (kMaxPrefillRows / 2) + 2;  // runs: a set that was split has at least half of the most rows
      sizes.low_rank_floats += n * PaddedRank(pair.rank);
    }
  }
  return sizes;
}

template <typename T>
struct Array {
  T* data = nullptr;
  size_t size = 0;

  T& Add(const T& value) { return data[size++] = value; }
  std::span<const T> From(size_t first) const { return {data + first, size - first}; }
  std::span<const T> all() const { return From(0); }
};

class Builder {
 public:
  Builder(KernelContext& context, const PlanOptions& options, LinearPlan& plan, std::span<const LinearSegment> segments)
      : options_(options), plan_(plan), segments_(segments), sizes_(Measure(segments, options)) {
    Allocate(context);
  }

  void Build() {
    max_group_ = options_.max_decode_group;
    AddDecodeSets();
    const size_t n_decode = sets_.size;
    max_group_ = options_.max_prefill_group;
    AddPlainPrefillSets();
    for (const LinearSegment& segment : segments_) {
      if (!ByTables(segment) && (HasPlanes(segment) || HasRaw(segment))) AddOwnPrefillSets(segment);
    }
    plan_.decode = sets_.all().first(n_decode);
    plan_.prefill = sets_.From(n_decode);
    plan_.groups = groups_.all();
    plan_.group_set = {group_set_.data, group_set_.size};
    plan_.tables = tables_.all();
    plan_.low_rank = low_rank_.all();
    plan_.n_low_rank_products = n_products_;
  }

 private:
  bool ByTables(const LinearSegment& segment) const { return PathOf(options_.paths, segment) == LinearPath::kTables; }

  void Allocate(KernelContext& context) {
    const size_t n = sizes_.n_rows;  // every set, run and group has a row at least
    const size_t bytes = n * (sizeof(LinearSet) + sizeof(LinearRun) + sizeof(RowGroup) + 2 * sizeof(size_t)) +
                         sizes_.n_tables * sizeof(TableItem) + sizes_.n_items * sizeof(SignItem) +
                         sizes_.n_low_rank * sizeof(LowRankItem);
    auto* memory = context.scratch.Get<uint8_t>(kSlotLinearOther, bytes);
    Carve(memory, n, sets_);
    Carve(memory, n, runs_);
    Carve(memory, n, groups_);
    Carve(memory, n, rows_);
    Carve(memory, n, group_set_);
    Carve(memory, sizes_.n_tables, tables_);
    Carve(memory, sizes_.n_items, items_);
    Carve(memory, sizes_.n_low_rank, low_rank_);
    x_ = context.scratch.Get<float>(kSlotLinearRows, n * plan_.padded_cols());
    row_table_bytes_ = (plan_.d_in + 7) / 8 * options_.octet_bytes + (plan_.d_in + 511) / 512 * options_.block_bytes;
    table_memory_ = context.scratch.Get<uint8_t>(kSlotLinearTables, sizes_.n_tables * row_table_bytes_);
    low_rank_memory_ = context.scratch.Get<float>(kSlotLinearLowRank, sizes_.low_rank_floats);
  }

  template <typename T>
  static void Carve(uint8_t*& memory, size_t n, Array<T>& array) {
    array.data = reinterpret_cast<T*>(memory);
    memory += n * sizeof(T);
  }

  void AddDecodeSets() {
    Open(plan_.base->weight, nullptr);
    for (const LinearSegment& segment : segments_) {
      if (ByTables(segment) && !HasRaw(segment)) AddRun(segment, segment.begin, RowsOf(segment));
    }
    Close();
    for (const LinearSegment& segment : segments_) {
      if (!ByTables(segment) || !HasRaw(segment)) continue;
      Open(*segment.delta->raw, nullptr);
      AddRun(segment, segment.begin, RowsOf(segment));
      Close();
    }
  }

  // Rows that see the plain base: one stream, cut into equal sets.
  void AddPlainPrefillSets() {
    const auto plain = [this](const LinearSegment& segment) {
      return !ByTables(segment) && !HasPlanes(segment) && !HasRaw(segment);
    };
    size_t n = 0;
    for (const LinearSegment& segment : segments_) n += plain(segment) ? RowsOf(segment) : 0;
    const size_t n_sets = GroupCount(n, kMaxPrefillRows);
    size_t set = 0;
    size_t position = 0;
    const bool is_bf16 = options_.kernels.prefill_dtype == PrefillDtype::kBf16;  // decode rows are not among them
    Open(plan_.base->weight, nullptr, is_bf16);
    for (const LinearSegment& segment : segments_) {
      if (!plain(segment)) continue;
      for (size_t row = segment.begin; row < segment.end;) {
        const size_t room = GroupBegin(n, n_sets, set + 1) - position;
        const size_t count = std::min(room, segment.end - row);
        AddRun(segment, row, count);
        row += count;
        position += count;
        if (count < room) continue;
        Close();
        Open(plan_.base->weight, nullptr, is_bf16);
        ++set;
      }
    }
    Close();
  }

  void AddOwnPrefillSets(const LinearSegment& segment) {
    const size_t n = RowsOf(segment);
    const size_t n_sets = GroupCount(n, kMaxPrefillRows);
    for (size_t i = 0; i < n_sets; ++i) {
      Open(HasRaw(segment) ? *segment.delta->raw : plan_.base->weight, HasPlanes(segment) ? segment.delta : nullptr,
           RoundsToBf16(options_.kernels, segment));
      const size_t begin = GroupBegin(n, n_sets, i);
      AddRun(segment, segment.begin + begin, GroupBegin(n, n_sets, i + 1) - begin);
      Close();
    }
  }

  void Open(const PackedWeight& weight, const PackedDelta* signs, bool is_bf16 = false) {
    open_ = {};
    open_.is_bf16 = is_bf16;
    open_.weight = &weight;
    open_.signs = signs;
    first_run_ = runs_.size;
    first_row_ = rows_.size;
    first_item_ = items_.size;
  }

  void AddRun(const LinearSegment& segment, size_t first_row, size_t n_rows) {
    if (n_rows == 0) return;
    LinearRun run;
    run.segment = &segment;
    run.first_row = first_row;
    run.n_rows = n_rows;
    run.position = rows_.size - first_row_;
    run.d_out = segment.delta != nullptr ? segment.delta->d_out : plan_.base->weight.d_out;
    for (size_t i = 0; i < n_rows; ++i) rows_.Add(first_row + i);
    open_.d_out = std::max(open_.d_out, run.d_out);
    if (HasPlanes(segment) && ByTables(segment)) AddSigns(run);
    run.low_rank = low_rank_memory_;
    const LinearRun& stored = runs_.Add(run);
    if (segment.delta != nullptr) AddLowRank(stored);
  }

  void AddSigns(const LinearRun& run) {
    const PackedDelta& delta = *run.delta();
    const size_t n_tables = TableCount(delta);
    const uint8_t* tables = table_memory_;
    for (size_t i = 0; i < run.n_rows; ++i) {
      for (size_t t = 0; t < n_tables; ++t) {
        const Buffer<float>& scale = delta.planes[t].col_scale;
        tables_.Add({plan_.x.Row(run.first_row + i), scale.empty() ? nullptr : scale.data(), table_memory_});
        table_memory_ += row_table_bytes_;
      }
    }
    for (size_t p = 0; p < delta.planes.size(); ++p) {
      for (size_t i = 0; i < run.n_rows; ++i) {
        items_.Add({.plane = &delta.planes[p],
                    .tables = tables + (i * n_tables + (n_tables == 1 ? 0 : p)) * row_table_bytes_,
                    .position = run.position + i,
                    .n_tiles = (run.d_out + kTileRows - 1) / kTileRows});
      }
    }
  }

  void AddLowRank(const LinearRun& run) {
    for (const PackedLowRank& pair : run.delta()->low_rank) {
      low_rank_.Add({&run, &pair, low_rank_memory_, n_products_});
      n_products_ += pair.rank;
      low_rank_memory_ += run.n_rows * PaddedRank(pair.rank);
    }
  }

  void Close() {
    const size_t n = rows_.size - first_row_;
    if (n == 0) return;
    const size_t first_group = groups_.size;
    const size_t n_groups = GroupCount(n, max_group_);
    for (size_t i = 0; i < n_groups; ++i) {
      const size_t begin = GroupBegin(n, n_groups, i);
      const RowGroup group = {.position = begin, .size = GroupBegin(n, n_groups, i + 1) - begin, .x = x_};
      groups_.Add(group);
      group_set_.Add(sets_.size);
      x_ += group.size * plan_.padded_cols();
    }
    open_.runs = runs_.From(first_run_);
    open_.groups = groups_.From(first_group);
    open_.rows = rows_.From(first_row_);
    open_.items = items_.From(first_item_);
    sets_.Add(open_);
  }

  const PlanOptions& options_;
  LinearPlan& plan_;
  std::span<const LinearSegment> segments_;
  Sizes sizes_;
  Array<LinearSet> sets_;
  Array<LinearRun> runs_;
  Array<RowGroup> groups_;
  Array<size_t> rows_;
  Array<size_t> group_set_;
  Array<TableItem> tables_;
  Array<SignItem> items_;
  Array<LowRankItem> low_rank_;
  size_t n_products_ = 0;
  float* x_ = nullptr;
  uint8_t* table_memory_ = nullptr;
  float* low_rank_memory_ = nullptr;
  size_t row_table_bytes_ = 0;
  size_t max_group_ = 1;
  LinearSet open_;  // the set being filled, its first run and row
  size_t first_run_ = 0;
  size_t first_row_ = 0;
  size_t first_item_ = 0;
};

}  // namespace

LinearPlan MakePlan(KernelContext& context, const PlanOptions& options, const LinearCall& call) {
  LinearPlan plan;
  plan.x = call.x;
  plan.y = call.y;
  plan.base = call.base;
  plan.d_in = call.base->weight.d_in;
  Builder(context, options, plan, call.segments).Build();
  return plan;
}

}  // namespace df::kernels::cpu
