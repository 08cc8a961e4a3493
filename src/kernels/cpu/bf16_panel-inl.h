// Prefill's weights as pairs of bf16 (KernelOptions::prefill_dtype): columns of one tile in P32's own layout,
// [pairs][32][2]. Of a bf16 weight without signs nothing is made: its tile is read where it lies. Else W_eff is made in
// f32, a few columns at a time in the first level, and rounded.
#if defined(DELTAFOLD_KERNELS_CPU_BF16_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef DELTAFOLD_KERNELS_CPU_BF16_PANEL_INL_H_
#undef DELTAFOLD_KERNELS_CPU_BF16_PANEL_INL_H_
#else
#define DELTAFOLD_KERNELS_CPU_BF16_PANEL_INL_H_
#endif

#include <algorithm>

#include "kernels/cpu/dot_bf16.h"
#include "kernels/cpu/linear_plan.h"
#include "kernels/cpu/panel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace df::kernels::cpu::HWY_NAMESPACE {

static_assert(kLanes < 16 || kPanelGroup <= kDotBf16Group);

struct Bf16Panels {
  static constexpr size_t kColumns = 2 * kPanelColumns;  // as many bytes as an f32 panel
  static constexpr size_t kStep = 64;                    // columns made at once, 8 KB in f32

  static const uint8_t* Make(const PanelArgs& args, const PackedDelta* signs) {
    auto* panel = reinterpret_cast<uint8_t*>(args.panel);
    if (args.weight != nullptr && args.dtype == DType::kBf16 && signs == nullptr) {
      PanelArgs as_stored = args;
      as_stored.staged = panel;
      return WeightsOf(as_stored);
    }
    for (size_t k = 0; k < args.n; k += kStep) {
      PanelArgs part = args;
      part.first += k;
      part.n = std::min(kStep, args.n - k);
      part.n_real = std::min(part.n, args.n_real - k);
      part.panel = reinterpret_cast<float*>(args.staged);
      part.staged = args.staged + kStep * kTileRows * sizeof(float);
      UnpackPanel(part, signs);
      PackDotBf16Panel(part.panel, part.n / 2, panel + k * kTileRows * sizeof(uint16_t));
    }
    return panel;
  }

  // Of n columns from column k on.
  static void Multiply(const uint8_t* weights, const RowGroup& group, size_t k, size_t n, float* sums) {
    const auto* pairs = reinterpret_cast<const uint32_t*>(group.x);
    kDotBf16Products[group.size - 1](
        {.weights = weights, .n_pairs = n / 2, .x = pairs + k / 2 * group.size, .sums = sums});
  }
};

}  // namespace df::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // DELTAFOLD_KERNELS_CPU_BF16_PANEL_INL_H_
