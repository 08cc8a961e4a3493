#include "kernels/cpu/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/sample_scan.h"
#include "kernels/cpu/top_k.h"
#include "kernels/scratch_slots.h"

namespace df::kernels::cpu {
namespace {

// Working memory of one thread, for a vocabulary of `vocab`.
struct LogprobScratch {
  double* block_mass = nullptr;    // [blocks]
  float* block_largest = nullptr;  // [blocks]
  float* values = nullptr;         // [vocab rounded up to blocks] weights, then what is selected from
  int32_t* tokens = nullptr;       // [vocab rounded up to blocks] found
};

struct ScratchLayout {
  size_t n_blocks = 0;
  size_t bytes = 0;

  explicit ScratchLayout(size_t vocab)
      : n_blocks(VocabBlocks(vocab)),
        bytes(n_blocks * (sizeof(double) + sizeof(float) + kVocabBlock * (sizeof(float) + sizeof(int32_t)))) {
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  LogprobScratch At(unsigned char* memory) const {
    LogprobScratch s;
    s.block_mass = reinterpret_cast<double*>(memory);
    s.block_largest = reinterpret_cast<float*>(s.block_mass + n_blocks);
    s.values = s.block_largest + n_blocks;
    s.tokens = reinterpret_cast<int32_t*>(s.values + n_blocks * kVocabBlock);
    return s;
  }
};

LogNormalizer Normalize(std::span<const float> logits, const LogprobScratch& s) {
  const RowScan scan = ScanRow(logits, s.block_largest);
  if (!scan.servable) return {};
  const double mass = WeighBlocks(logits, scan.largest, 1.0F, s.values, s.block_mass);
  return {.largest = scan.largest, .log_mass = static_cast<float>(std::log(mass)), .servable = true};
}

// The n_top likeliest tokens in order, at the beginning of s.tokens.
void FindTop(std::span<const float> logits, size_t n_top, const LogprobScratch& s) {
  const float bound = TopKBound({s.block_largest, VocabBlocks(logits.size())}, n_top, s.values);
  const size_t n = FindBetween(logits, s.block_largest, bound, std::numeric_limits<float>::infinity(), s.tokens);
  const auto precedes = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::nth_element(s.tokens, s.tokens + n_top - 1, s.tokens + n, precedes);
  std::sort(s.tokens, s.tokens + n_top, precedes);
}

}  // namespace

void TopLogprobs(KernelContext& context, MatView<const float> logits, std::span<const LogprobRow> rows,
                 std::span<LogNormalizer> normalizers) {
  const ScratchLayout layout(logits.cols);
  auto* memory = context.scratch.Get<unsigned char>(kSlotSample, context.pool.n_threads() * layout.bytes);
  context.pool.ParallelFor(rows.size(), 1, [&](size_t begin, size_t end, size_t thread) {
    const LogprobScratch s = layout.At(memory + thread * layout.bytes);
    for (size_t i = begin; i < end; ++i) {
      const LogprobRow& row = rows[i];
      const std::span<const float> x = {logits.Row(row.row), row.vocab};
      normalizers[i] = Normalize(x, s);
      if (!normalizers[i].servable || row.n_top == 0) continue;
      FindTop(x, row.n_top, s);
      for (size_t rank = 0; rank < row.n_top; ++rank) {
        row.top[rank] = LogprobOf(logits, row, normalizers[i], s.tokens[rank]);
      }
    }
  });
}

}  // namespace df::kernels::cpu
