#include "kernels/cpu/sample.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/rng.h"
#include "kernels/cpu/sample_scan.h"
#include "kernels/scratch_slots.h"

namespace df::kernels::cpu {
namespace {

// A token that may be drawn.
struct Candidate {
  float logit = 0.0F;
  int32_t token = 0;
  float weight = 0.0F;  // exp((logit - largest) / temperature)
};

// The order in which top-p takes tokens: likelier first, among equals the lower index.
bool Precedes(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

// Working memory of one thread, for a vocabulary of `vocab`.
struct SampleScratch {
  double* block_mass = nullptr;     // [blocks]
  float* block_largest = nullptr;   // [blocks]
  float* values = nullptr;          // [vocab rounded up to blocks] logits or weights to select from
  Candidate* candidates = nullptr;  // [vocab] by rising index
  Candidate* selection = nullptr;   // [vocab] the same, partly ordered
};

struct ScratchLayout {
  size_t n_blocks = 0;
  size_t bytes = 0;

  explicit ScratchLayout(size_t vocab)
      : n_blocks(VocabBlocks(vocab)),
        bytes(n_blocks * (sizeof(double) + sizeof(float) + kVocabBlock * (sizeof(float) + 2 * sizeof(Candidate)))) {
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  SampleScratch At(unsigned char* memory) const {
    SampleScratch s;
    s.block_mass = reinterpret_cast<double*>(memory);
    s.block_largest = reinterpret_cast<float*>(s.block_mass + n_blocks);
    s.values = s.block_largest + n_blocks;
    s.candidates = reinterpret_cast<Candidate*>(s.values + n_blocks * kVocabBlock);
    s.selection = s.candidates + n_blocks * kVocabBlock;
    return s;
  }
};

// One row with what is known of it.
struct RowState {
  std::span<const float> logits;
  const SampleRow* row = nullptr;
  float largest = 0.0F;
  SampleScratch scratch;

  std::span<const float> Block(size_t block) const {
    const size_t begin = block * kVocabBlock;
    return logits.subspan(begin, std::min(kVocabBlock, logits.size() - begin));
  }
};

int32_t FirstLargest(const RowState& state) {
  size_t block = 0;
  while (state.scratch.block_largest[block] != state.largest) ++block;
  const std::span<const float> logits = state.Block(block);
  const auto at = std::find(logits.begin(), logits.end(), state.largest) - logits.begin();
  return static_cast<int32_t>(block * kVocabBlock) + static_cast<int32_t>(at);
}

// All tokens with logit >= threshold, by rising index, with their weights. Blocks below it are not read.
std::span<Candidate> Collect(const RowState& state, float threshold) {
  const SampleScratch& s = state.scratch;
  size_t n = 0;
  for (size_t block = 0; block < VocabBlocks(state.logits.size()); ++block) {
    if (!(s.block_largest[block] >= threshold)) continue;
    const std::span<const float> logits = state.Block(block);
    for (size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] < threshold) continue;
      s.values[n] = logits[i];
      s.candidates[n++] = {.logit = logits[i], .token = static_cast<int32_t>(block * kVocabBlock + i)};
    }
  }
  // In place: a weight replaces the logit that it came from.
  WeighLogits({s.values, n}, state.largest, state.row->temperature, s.values);
  for (size_t i = 0; i < n; ++i) s.candidates[i].weight = s.values[i];
  return {s.candidates, n};
}

double MassOf(std::span<const Candidate> candidates) {
  double mass = 0;
  for (const Candidate& candidate : candidates) mass += double{candidate.weight};
  return mass;
}

float LargestAt(std::span<float> values, size_t rank) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(rank), values.end(), std::greater<>());
  return values[rank];
}

// The k largest and all equal to the last of them. The k-th largest block maximum bounds the k-th largest logit from
// below, so that only blocks holding candidates are searched.
std::span<Candidate> CollectTopK(const RowState& state, size_t k) {
  const SampleScratch& s = state.scratch;
  const size_t n_blocks = VocabBlocks(state.logits.size());
  float bound = -std::numeric_limits<float>::infinity();
  if (k <= n_blocks) {
    std::copy_n(s.block_largest, n_blocks, s.values);
    bound = LargestAt({s.values, n_blocks}, k - 1);
  }
  const std::span<Candidate> found = Collect(state, bound);
  for (size_t i = 0; i < found.size(); ++i) s.values[i] = found[i].logit;
  const float kth = LargestAt({s.values, found.size()}, k - 1);
  const auto end = std::remove_if(found.begin(), found.end(), [&](const Candidate& c) { return c.logit < kth; });
  return found.first(static_cast<size_t>(end - found.begin()));
}

// Tokens from the top whose mass reaches `target`, perhaps more of them: the reach in units of temperature is doubled
// until it does. exp(-128) is 0 in f32, so that the last round holds all there is.
std::span<Candidate> CollectMass(const RowState& state, double target) {
  for (float reach = 4;; reach *= 2) {
    const std::span<Candidate> found = Collect(state, state.largest - reach * state.row->temperature);
    if (reach >= 128 || MassOf(found) >= target) return found;
  }
}

// The last token of the smallest set from the top whose mass reaches `target`: a quickselect by mass, O(n).
Candidate LastKept(const RowState& state, std::span<const Candidate> candidates, double target) {
  Candidate* order = state.scratch.selection;
  std::copy(candidates.begin(), candidates.end(), order);
  size_t low = 0;  // order[0..low) are kept, of mass `mass` < target; the answer is in order[low..high)
  size_t high = candidates.size();
  double mass = 0;
  while (high - low > 1) {
    const size_t middle = low + (high - low) / 2;
    std::nth_element(order + low, order + middle, order + high, Precedes);
    const double upper = MassOf({order + low, middle - low});
    if (mass + upper >= target) {
      high = middle;
    } else {
      mass += upper;
      low = middle;
    }
  }
  return order[low];
}

// The first token, by rising index, whose running weight exceeds `target`; rounding may leave the last one of weight.
int32_t DrawFrom(std::span<const Candidate> candidates, const Candidate& last_kept, double unit) {
  const auto kept = [&](const Candidate& c) { return !Precedes(last_kept, c); };
  double mass = 0;
  for (const Candidate& c : candidates) mass += kept(c) ? double{c.weight} : 0.0;
  const double target = unit * mass;
  double sum = 0;
  int32_t token = -1;
  for (const Candidate& c : candidates) {
    if (!kept(c) || c.weight == 0.0F) continue;
    token = c.token;
    sum += double{c.weight};
    if (sum > target) break;
  }
  return token;
}

// As DrawFrom over the whole vocabulary: first the block, then the token in it.
int32_t DrawFromAll(const RowState& state, double unit) {
  const SampleScratch& s = state.scratch;
  const double target = unit * WeighBlocks(state.logits, state.largest, state.row->temperature, s.block_mass);
  double before = 0;
  size_t chosen = 0;
  double chosen_before = 0;
  for (size_t block = 0; block < VocabBlocks(state.logits.size()); ++block) {
    if (s.block_mass[block] == 0.0) continue;
    chosen = block;
    chosen_before = before;
    before += s.block_mass[block];
    if (before > target) break;
  }
  const std::span<const float> logits = state.Block(chosen);
  WeighLogits(logits, state.largest, state.row->temperature, s.values);
  double in_block = 0;
  for (size_t i = 0; i < logits.size(); ++i) in_block += double{s.values[i]};
  // The block's mass was summed in f32: the share of it carries over, not the difference.
  const double rest = (target - chosen_before) / s.block_mass[chosen] * in_block;
  double sum = 0;
  size_t token = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (s.values[i] == 0.0F) continue;
    token = i;
    sum += double{s.values[i]};
    if (sum > rest) break;
  }
  return static_cast<int32_t>(chosen * kVocabBlock + token);
}

int32_t SampleToken(RowState state) {
  const SampleRow& row = *state.row;
  const RowScan scan = ScanRow(state.logits, state.scratch.block_largest);
  if (!scan.servable) return -1;
  state.largest = scan.largest;
  if (row.temperature < kGreedyTemperature) return FirstLargest(state);

  const double unit = RandomUnit(row.seed, row.draw);
  const bool limits_count = row.top_k > 0 && static_cast<size_t>(row.top_k) < row.vocab;
  const bool limits_mass = row.top_p < 1.0F;
  if (!limits_count && !limits_mass) return DrawFromAll(state, unit);

  std::span<Candidate> candidates;
  double target = std::numeric_limits<double>::infinity();  // keeps all
  if (limits_count) {
    candidates = CollectTopK(state, static_cast<size_t>(row.top_k));
    if (limits_mass) target = double{row.top_p} * MassOf(candidates);
  } else {
    target = double{row.top_p} * WeighBlocks(state.logits, state.largest, row.temperature, state.scratch.block_mass);
    candidates = CollectMass(state, target);
  }
  return DrawFrom(candidates, LastKept(state, candidates, target), unit);
}

}  // namespace

void Sample(KernelContext& context, MatView<const float> logits, std::span<const SampleRow> rows,
            std::span<Sampled> results) {
  const ScratchLayout layout(logits.cols);
  auto* memory = context.scratch.Get<unsigned char>(kSlotSample, context.pool.n_threads() * layout.bytes);
  context.pool.ParallelFor(rows.size(), 1, [&](size_t begin, size_t end, size_t thread) {
    for (size_t i = begin; i < end; ++i) {
      results[i].token = SampleToken({.logits = {logits.Row(rows[i].row), rows[i].vocab},
                                      .row = &rows[i],
                                      .scratch = layout.At(memory + thread * layout.bytes)});
    }
  });
}

void LogSoftmax(KernelContext& context, MatView<const float> logits, MatView<float> out) {
  const ScratchLayout layout(logits.cols);
  auto* memory = context.scratch.Get<unsigned char>(kSlotSample, context.pool.n_threads() * layout.bytes);
  context.pool.ParallelFor(logits.rows, 1, [&](size_t begin, size_t end, size_t thread) {
    const SampleScratch s = layout.At(memory + thread * layout.bytes);
    for (size_t row = begin; row < end; ++row) {
      const float largest = ScanRow(logits.RowSpan(row), s.block_largest).largest;
      const double mass = WeighBlocks(logits.RowSpan(row), largest, 1.0F, s.block_mass);
      ShiftLogits(logits.RowSpan(row), largest, static_cast<float>(std::log(mass)), out.Row(row));
    }
  });
}

}  // namespace df::kernels::cpu
