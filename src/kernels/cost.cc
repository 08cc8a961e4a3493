#include "kernels/cost.h"

#include "kernels/linear_path.h"

namespace df::kernels {
namespace {

double Product(size_t a, size_t b) { return static_cast<double>(a) * static_cast<double>(b); }

constexpr double kSignsOfASum = 4;  // that a look-up brings at once

// FLOPs of one row of a segment.
double RowFlops(const LinearWeight& base, const LinearSegment& segment, LinearPath path) {
  const size_t d_in = base.weight.d_in;
  if (segment.delta == nullptr) return 2 * Product(base.weight.d_out, d_in);
  const PackedDelta& delta = *segment.delta;
  double flops = 2 * Product(delta.d_out, d_in);
  for (const PackedLowRank& pair : delta.low_rank) flops += 2 * Product(pair.rank, d_in + delta.d_out);
  // Replaced rows are products beside the base's, which computes all of its rows; rows of bytes are added to them.
  if (delta.rows) flops += 2 * Product(delta.rows->index.size(), d_in);
  if (delta.byte_rows) flops += 2 * Product(delta.byte_rows->index.size(), d_in);
  if (path == LinearPath::kTables) {
    flops += static_cast<double>(delta.planes.size()) * Product(delta.d_out, d_in) / kSignsOfASum;
  }
  return flops;
}

// What a segment costs beside its rows; `base_read` tells which passes over the base are counted already.
struct BaseRead {
  bool by_tables = false;
  bool by_panels = false;
};

Cost SegmentWeights(const LinearWeight& base, const LinearSegment& segment, LinearPath path, BaseRead& base_read) {
  Cost cost;
  const auto base_bytes = static_cast<double>(base.weight.bytes());
  const PackedDelta* delta = segment.delta;
  if (delta != nullptr) cost.bytes += DeltaBytes(*delta);
  const bool raw = delta != nullptr && delta->raw.has_value();
  if (path == LinearPath::kPanels && delta != nullptr && !delta->planes.empty()) {
    if (!raw) cost.bytes += base_bytes;
    cost.flops += static_cast<double>(delta->planes.size()) * Product(delta->d_out, base.weight.d_in);
    return cost;
  }
  bool& read = path == LinearPath::kTables ? base_read.by_tables : base_read.by_panels;
  if (!raw && !read) {
    cost.bytes += base_bytes;
    read = true;
  }
  return cost;
}

}  // namespace

double DeltaBytes(const PackedDelta& delta) { return static_cast<double>(delta.bytes()); }

Cost LinearCost(const KernelOptions& options, const LinearWeight& base, std::span<const LinearSegment> segments) {
  Cost cost;
  BaseRead base_read;
  const LinearPaths paths = PathsFor(options);
  for (const LinearSegment& segment : segments) {
    const size_t n = segment.end - segment.begin;
    if (n == 0) continue;
    const size_t d_out = segment.delta != nullptr ? segment.delta->d_out : base.weight.d_out;
    const LinearPath path = PathOf(paths, segment);
    cost += SegmentWeights(base, segment, path, base_read);
    cost.bytes += sizeof(float) * Product(n, base.weight.d_in + d_out);
    cost.flops += static_cast<double>(n) * RowFlops(base, segment, path);
  }
  return cost;
}

}  // namespace df::kernels
