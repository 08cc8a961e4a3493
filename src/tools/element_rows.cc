#include "tools/element_rows.h"

#include <algorithm>

#include "base/rng.h"
#include "kernels/activation.h"
#include "kernels/limits.h"
#include "kernels/norm.h"
#include "kernels/rope.h"

namespace df::tools {
namespace {

using Operation = RowSet::Operation;
using Times = RowSet::Times;

constexpr size_t kRows = 16;     // 400 KB at most: they fit a second level
constexpr size_t kRepeats = 64;  // about a millisecond each

class ElementRows {
 public:
  ElementRows(KernelContext& context, const ElementShape& shape, RowSet& rows)
      : context_(context),
        rows_(rows),
        x_(kRows, Widest(shape)),
        y_(kRows, Widest(shape)),
        cos_(kRows, shape.head_dim / 2),
        sin_(kRows, shape.head_dim / 2),
        weight_(Widest(shape)),
        memory_(2 * x_.size_bytes()) {
    for (size_t i = 0; i < kRows * x_.cols(); ++i) x_.Row(0)[i] = static_cast<float>(RandomUnit(1, i) - 0.5);
    std::fill_n(weight_.data(), weight_.size(), 1.0F);
    // Rotations again and again must keep lengths: numbers near 0 are slow.
    std::fill_n(cos_.Row(0), kRows * cos_.cols(), 0.6F);
    std::fill_n(sin_.Row(0), kRows * sin_.cols(), 0.8F);
  }

  // A kernel on rows of `width` that reads and writes `n_matrices` times as many numbers, `n_distinct` of them in
  // different places.
  struct Kernel {
    std::string name;
    size_t width = 0;
    size_t n_matrices = 0, n_distinct = 0;
    double flops_per_number = 0;
  };
  void Add(const Kernel& kernel, std::function<void()> run) {
    const size_t matrix_bytes = kRows * kernel.width * sizeof(float);
    const kernels::Cost cost = {.bytes = static_cast<double>(kernel.n_matrices * matrix_bytes),
                                .flops = kernel.flops_per_number * static_cast<double>(kRows * kernel.width)};
    const Operation subject = rows_.Add([run = std::move(run)] {
      for (size_t i = 0; i < kRepeats; ++i) run();
    });
    const size_t read_bytes = kernel.n_distinct * matrix_bytes;
    const Operation read = rows_.Add([this, read_bytes] {
      for (size_t i = 0; i < kRepeats; ++i) {
        const volatile uint64_t digest = kernels::ReadMemory(context_, memory_.span().first(read_bytes));
        (void)digest;
      }
    });
    const double ratio = cost.bytes / static_cast<double>(read_bytes);
    rows_.AddRow({.name = kernel.name,
                  .subject = subject,
                  .cost = cost,
                  .others = {read},
                  .sample = [=](const Times& times) { return times(read) * ratio / times(subject); },
                  .n_calls = kRepeats,
                  .from_cache = true});
  }

  void AddAll(const ElementShape& shape) {
    const size_t heads = shape.n_heads * shape.head_dim;
    const auto x = [this](size_t width) { return MatView<float>(x_.Row(0), kRows, width); };
    const auto y = [this](size_t width) { return MatView<float>(y_.Row(0), kRows, width); };
    norm_ = {.begin = 0, .end = kRows, .weight = weight_.data()};
    Add({.name = "rms_norm_cache_share",
         .width = shape.d_model,
         .n_matrices = 2,
         .n_distinct = 2,
         .flops_per_number = 4},
        [=, this] { kernels::RmsNorm(context_, {&norm_, 1}, 1e-6F, x(shape.d_model), y(shape.d_model)); });
    Add({.name = "rope_cache_share", .width = heads, .n_matrices = 2, .n_distinct = 1, .flops_per_number = 3},
        [=, this] { kernels::RotateHeads(context_, {cos_.view(), sin_.view(), {}, 0}, x(heads)); });
    Add({.name = "swiglu_cache_share", .width = shape.d_ff, .n_matrices = 3, .n_distinct = 2, .flops_per_number = 4},
        [=, this] { kernels::SiluMul(context_, x(shape.d_ff), x(shape.d_ff), y(shape.d_ff)); });
  }

 private:
  static size_t Widest(const ElementShape& shape) {
    return std::max({shape.d_model, shape.n_heads * shape.head_dim, shape.d_ff});
  }

  KernelContext& context_;
  RowSet& rows_;
  Mat<float> x_, y_, cos_, sin_;
  Buffer<float> weight_;
  Buffer<uint8_t> memory_;
  kernels::NormSegment norm_;
};

}  // namespace

std::vector<RowResult> MeasureElementRows(KernelContext& context, const ElementShape& shape,
                                          const RowSelection& selection, size_t n_rounds) {
  RowSet rows(shape.name + ", " + std::to_string(kRows) + " rows", context.pool.n_threads());
  ElementRows elements(context, shape, rows);
  elements.AddAll(shape);
  return rows.Measure(selection, n_rounds);
}

}  // namespace df::tools
