// Stages of a Linear call: plan the rows (linear_plan.h); make what tiles share (activations-inl.h); then every thread
// takes its tiles of outputs: decode sets (GEMV and small batches from P32, sign tables), prefill sets (panels in f32
// or bf16), epilogue.
#include "kernels/cpu/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/linear.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include <algorithm>

#include "base/check.h"
#include "hwy/highway.h"
#include "kernels/cpu/activations-inl.h"
#include "kernels/cpu/bf16_panel-inl.h"
#include "kernels/cpu/block_product-inl.h"
#include "kernels/cpu/core.h"
#include "kernels/cpu/decode-inl.h"
#include "kernels/cpu/epilogue-inl.h"
#include "kernels/cpu/linear_plan.h"
#include "kernels/cpu/panel-inl.h"
#include "kernels/cpu/sign_lookup-inl.h"
#include "kernels/cpu/sign_permute-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/prefill_dtype.h"
#include "kernels/scratch_slots.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

// Prefill takes four tiles a column block, so that the rows' block (256 KB) is read from the outer cache once for four;
// four tiles of sums (128 KB) lie beside it.
inline constexpr size_t kPrefillTiles = 4;

// The widest range of outputs of any set, in tiles.
size_t TilesOf(std::span<const LinearSet> sets) {
  size_t d_out = 0;
  for (const LinearSet& set : sets) d_out = std::max(d_out, set.d_out);
  return (d_out + kTileRows - 1) / kTileRows;
}

size_t MostRows(std::span<const LinearSet> sets) {
  size_t n = 0;
  for (const LinearSet& set : sets) n = std::max(n, set.rows.size());
  return n;
}

// Weight bytes of one tile of outputs, counted again for every four rows: about where products outweigh reading.
size_t TileWorkBytes(const LinearPlan& plan, size_t n_rows) {
  return kTileRows * plan.d_in * sizeof(uint16_t) * (1 + n_rows / 4);
}

template <class Signs>
void DecodeSets(KernelContext& context, const LinearPlan& plan) {
  const size_t n_units = (TilesOf(plan.decode) + kUnitTiles - 1) / kUnitTiles;
  size_t floats = 0;
  for (const LinearSet& set : plan.decode) floats = std::max(floats, DecodeFloats(plan, set));
  float* memory = context.scratch.Get<float>(kSlotLinearPanels, context.pool.n_threads() * floats);
  const size_t grain = Grain(kUnitTiles * TileWorkBytes(plan, MostRows(plan.decode)));
  context.pool.ParallelFor(n_units, grain, [&](size_t begin, size_t end, size_t thread) {
    for (const LinearSet& set : plan.decode) DecodeSet<Signs>(plan, set, begin, end, memory + thread * floats);
  });
}

// What a thread unpacks into, [kPanelColumns][32] f32 each.
struct PanelMemory {
  float* panel = nullptr;
  uint8_t* staged = nullptr;
};

template <class Panels>
PanelArgs PanelAt(const LinearPlan& plan, const LinearSet& set, size_t tile, size_t k, const PanelMemory& memory) {
  const PackedWeight& weight = *set.weight;
  const size_t n = std::min(Panels::kColumns, plan.padded_cols() - k);
  return {.weight = tile < weight.n_tiles() ? &weight : nullptr,
          .dtype = weight.dtype,
          .tile = tile,
          .first = k,
          .n = n,
          .n_real = std::min(n, plan.d_in - k),
          .panel = memory.panel,
          .staged = memory.staged};
}

// Tiles [begin, end), at most kPrefillTiles, of one set. sums [tiles][rows of the set][32].
template <class Panels>
void PrefillTiles(const LinearPlan& plan, const LinearSet& set, size_t begin, size_t end, const PanelMemory& memory,
                  float* sums) {
  const size_t tile_sums = set.rows.size() * kTileRows;
  std::fill_n(sums, (end - begin) * tile_sums, 0.0F);
  for (size_t k = 0; k < plan.padded_cols(); k += Panels::kColumns) {
    for (size_t tile = begin; tile < end; ++tile) {
      const PanelArgs args = PanelAt<Panels>(plan, set, tile, k, memory);
      const uint8_t* weights = Panels::Make(args, set.signs);
      // The panel after this one: the next tile's, or the first tile's next columns.
      const size_t next_k = tile + 1 < end ? k : std::min(k + Panels::kColumns, plan.padded_cols() - 2);
      const PanelArgs next = PanelAt<Panels>(plan, set, tile + 1 < end ? tile + 1 : begin, next_k, memory);
      for (size_t i = 0; i < set.groups.size(); ++i) {
        const RowGroup& group = set.groups[i];
        PrefetchPanel(next, set.signs, i, set.groups.size());
        Panels::Multiply(weights, group, k, args.n, sums + (tile - begin) * tile_sums + group.position * kTileRows);
      }
    }
  }
  for (const LinearRun& run : set.runs) {
    Finish(plan, run,
           {.first = begin * kTileRows,
            .n = (end - begin) * kTileRows,
            .sums = sums + run.position * kTileRows,
            .stride = kTileRows,
            .tile_stride = tile_sums});
  }
}

void PrefillSets(KernelContext& context, const LinearPlan& plan) {
  const size_t panel_floats = kPanelColumns * kTileRows;
  const size_t thread_floats = 2 * panel_floats + MostRows(plan.prefill) * kPrefillTiles * kTileRows;
  float* memory = context.scratch.Get<float>(kSlotLinearPanels, context.pool.n_threads() * thread_floats);
  const size_t grain = Grain(TileWorkBytes(plan, MostRows(plan.prefill)));
  context.pool.ParallelFor(TilesOf(plan.prefill), grain, [&](size_t begin, size_t end, size_t thread) {
    float* floats = memory + thread * thread_floats;
    const PanelMemory panels = {.panel = floats, .staged = reinterpret_cast<uint8_t*>(floats + panel_floats)};
    for (const LinearSet& set : plan.prefill) {
      const size_t set_end = std::min(end, (set.d_out + kTileRows - 1) / kTileRows);
      for (size_t tile = begin; tile < set_end; tile += kPrefillTiles) {
        const size_t tiles_end = std::min(tile + kPrefillTiles, set_end);
        float* sums = floats + 2 * panel_floats;
        set.is_bf16 ? PrefillTiles<Bf16Panels>(plan, set, tile, tiles_end, panels, sums)
                    : PrefillTiles<F32Panels>(plan, set, tile, tiles_end, panels, sums);
      }
    }
  });
}

// Exact signs: f32 permutes where a register holds 16 of them, else 28-bit lookups.
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
using ExactSigns = PermuteSigns;
#else
using ExactSigns = LookupSigns<2>;
#endif

// Paths by cost, for callers that do not ask for batch invariance. Signs of one row hide behind the base's bytes; on a
// Zen 3 (4096 x 4096) exact signs take 0.22 ms a row hot and 14-bit ones 0.11, beside 2.6 ms for reading the base: from
// two rows on the difference shows. Permutes of 16 lanes take 0.14 ms a row on an Intel core. On a Zen 4 they take 0.19
// beside 1.15 for the base and take turns with it: what signs cost is seen from the first row on.
size_t MinLookupProducts() {
  if (kLanes < 16) return 2;
  return ThisCore().halves_vectors ? 1 : 4;
}
template <class Signs>
void LinearWith(KernelContext& context, const LinearCall& call) {
  const PlanOptions options = {.max_decode_group = kTileGroup,
                               .max_prefill_group = kPanelGroup,
                               .octet_bytes = Signs::kOctetBytes,
                               .block_bytes = Signs::kBlockBytes,
                               .paths = PathsFor(context.options),
                               .kernels = context.options};
  const LinearPlan plan = MakePlan(context, options, call);
  PackRows(context, plan);
  BuildSignTables<Signs>(context, plan);
  MultiplyDown(context, plan);
  if (!plan.decode.empty()) DecodeSets<Signs>(context, plan);
  if (!plan.prefill.empty()) PrefillSets(context, plan);
}

bool UsesLookup(const KernelOptions& options, std::span<const LinearSegment> segments) {
  if (options.sign_kernel != SignKernel::kAuto) return options.sign_kernel == SignKernel::kLookup;
  return !options.batch_invariant && CountSignProducts(PathsFor(options), segments) >= MinLookupProducts();
}

void LinearImpl(KernelContext& context, const LinearCall& call) {
  if (!UsesLookup(context.options, call.segments)) return LinearWith<ExactSigns>(context, call);
#if HWY_TARGET == HWY_AVX3
  if (ThisCore().halves_vectors) return LinearWith<LookupSigns<1, kFullBytes / 2>>(context, call);
#endif
  LinearWith<LookupSigns<1>>(context, call);
}

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace df::kernels::cpu {

HWY_EXPORT(LinearImpl);

void Linear(KernelContext& context, const LinearWeight& base, std::span<const LinearSegment> segments,
            MatView<const float> x, MatView<float> y) {
  DF_CHECK(CheckPrefillDtype(context.options.prefill_dtype).ok());
  const LinearCall call = {.base = &base, .segments = segments, .x = x, .y = y};
  HWY_DYNAMIC_DISPATCH(LinearImpl)(context, call);
}

}  // namespace df::kernels::cpu
#endif  // HWY_ONCE
