#include "kernels/linear_path.h"

namespace df::kernels {
namespace {

// Folding reads the base a second time, in the phase that unpacks every weight. On a Zen 4 with AVX-512 (0.6B shape, 2
// threads) 8 rows of one variant took 2.0 of the base's time so and 1.3 by tables, 14 rows 1.5 so.
constexpr size_t kMinFoldedRows = 16;
// A few prefill rows ride on the reading of the base that the decode rows pay.
constexpr size_t kMaxUnfoldedRows = 4;

}  // namespace

LinearPaths PathsFor(const KernelOptions& options) {
  if (options.batch_invariant) return {};
  return {.min_folded_rows = kMinFoldedRows, .max_unfolded_rows = kMaxUnfoldedRows};
}

LinearPath PathOf(const LinearPaths& paths, const LinearSegment& segment) {
  const size_t n = segment.end - segment.begin;
  const bool has_signs = segment.delta != nullptr && !segment.delta->planes.empty();
  const bool panels =
      segment.phase == Phase::kPrefill ? n > paths.max_unfolded_rows : has_signs && n >= paths.min_folded_rows;
  return panels ? LinearPath::kPanels : LinearPath::kTables;
}

bool RoundsToBf16(const KernelOptions& options, const LinearSegment& segment) {
  return options.prefill_dtype == PrefillDtype::kBf16 && segment.phase == Phase::kPrefill &&
         PathOf(PathsFor(options), segment) == LinearPath::kPanels;
}

size_t CountSignProducts(const LinearPaths& paths, std::span<const LinearSegment> segments) {
  size_t n = 0;
  for (const LinearSegment& segment : segments) {
    if (segment.delta == nullptr || PathOf(paths, segment) != LinearPath::kTables) continue;
    n += (segment.end - segment.begin) * segment.delta->planes.size();
  }
  return n;
}

}  // namespace df::kernels
