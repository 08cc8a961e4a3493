#include "tools/linear_world.h"

#include <algorithm>
#include <utility>

#include "base/rng.h"
#include "kernels/limits.h"
#include "tools/machine.h"
#include "tools/synthetic_weights.h"

namespace df::tools {
namespace {

constexpr size_t kRotationBytes = size_t{320} << 20;
constexpr size_t kVariants = 32;
constexpr size_t kAdapterRank = 16;
constexpr size_t kMaxRows = 256;
constexpr size_t kMultiplyAddSteps = 30'000;  // about a millisecond

}  // namespace

LinearWorld::LinearWorld(KernelContext& context, const MatrixShape& shape) : context_(context), shape_(shape) {
  const size_t rotation_bytes = std::max(kRotationBytes, LastLevelCacheBytes() * 5 / 4);
  const size_t n_bases = rotation_bytes / (shape.d_out * shape.d_in * 2) + 1;
  bases_.resize(std::max<size_t>(n_bases, 2));
  for (size_t i = 0; i < bases_.size(); ++i) {
    bases_[i].weight = SyntheticWeight(context, shape.d_out, shape.d_in, i);
  }
  SyntheticDelta delta;
  for (size_t i = 0; i < kVariants; ++i) {
    variants_.push_back(kernels::PackDelta(context, delta.Make(shape.d_out, shape.d_in, 1000 + i)));
    adapters_.push_back(SyntheticAdapter(context, {.d_out = shape.d_out, .d_in = shape.d_in, .rank = kAdapterRank}, i));
  }
  x_ = Mat<float>(kMaxRows, shape.d_in);
  y_ = Mat<float>(kMaxRows, shape.d_out);
  for (size_t i = 0; i < kMaxRows * shape.d_in; ++i) x_.Row(0)[i] = static_cast<float>(2 * RandomUnit(7, i) - 1);
}

void LinearWorld::FillSegments(const LinearWorldCall& call) {
  const auto& changes = call.change == Change::kAdapter ? adapters_ : variants_;
  segments_.clear();
  for (size_t s = 0; s < call.n_segments; ++s) {
    segments_.push_back({.begin = call.n_rows * s / call.n_segments,
                         .end = call.n_rows * (s + 1) / call.n_segments,
                         .phase = call.phase,
                         .delta = call.change == Change::kNone ? nullptr : &changes[variant_turn_++ % kVariants]});
  }
}

void LinearWorld::Run(const LinearWorldCall& call) {
  FillSegments(call);
  kernels::Linear(context_, NextBase(), segments_, MatView<const float>(x_.Row(0), call.n_rows, shape_.d_in),
                  y_.Rows(0, call.n_rows));
}

void LinearWorld::RunWith(const KernelOptions& options, const LinearWorldCall& call) {
  const KernelOptions before = std::exchange(context_.options, options);
  Run(call);
  context_.options = before;
}

kernels::Cost LinearWorld::CostOf(const KernelOptions& options, const LinearWorldCall& call) {
  FillSegments(call);
  return kernels::LinearCost(options, bases_[0], segments_);
}

void LinearWorld::ReadWeight() {
  const volatile uint64_t digest = kernels::ReadMemory(context_, NextBase().weight.tiles.span());
  (void)digest;
}

double LinearWorld::DotBf16() { return kernels::DotBf16(context_, kMultiplyAddSteps); }

double LinearWorld::MultiplyAdd() { return kernels::MultiplyAdd(context_, kMultiplyAddSteps); }

}  // namespace df::tools
