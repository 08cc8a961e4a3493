#include "kernels/cpu/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/rng.h"
#include "kernels/cpu/sample_scan.h"
#include "kernels/cpu/top_k.h"
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
  float* values = nullptr;          // [vocab rounded up to blocks] logits to select from, or weights of all tokens
  int32_t* tokens = nullptr;        // [vocab] found
  Candidate* candidates = nullptr;  // [vocab] by rising index
  Candidate* selection = nullptr;   // [vocab] the same, partly ordered
};

struct ScratchLayout {
  size_t n_blocks = 0;
  size_t bytes = 0;

  explicit ScratchLayout(size_t vocab)
      : n_blocks(VocabBlocks(vocab)),
        bytes(n_blocks * (sizeof(double) + sizeof(float) +
                          kVocabBlock * (sizeof(float) + sizeof(int32_t) + 2 * sizeof(Candidate)))) {
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  SampleScratch At(unsigned char* memory) const {
    SampleScratch s;
    s.block_mass = reinterpret_cast<double*>(memory);
    s.block_largest = reinterpret_cast<float*>(s.block_mass + n_blocks);
    s.values = s.block_largest + n_blocks;
    s.tokens = reinterpret_cast<int32_t*>(s.values + n_blocks * kVocabBlock);
    s.candidates = reinterpret_cast<Candidate*>(s.tokens + n_blocks * kVocabBlock);
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
  // From `block` on, with the weights that WeighBlocks has put into scratch.values.
  WeighedRow Weighed(size_t block = 0) const {
    const size_t begin = std::min(block * kVocabBlock, logits.size());
    return {.logits = logits.subspan(begin),
            .block_largest = scratch.block_largest + block,
            .weights = scratch.values + block * kVocabBlock};
  }
};

int32_t FirstLargest(const RowState& state) {
  size_t block = 0;
  while (state.scratch.block_largest[block] != state.largest) ++block;
  const std::span<const float> logits = state.Block(block);
  const auto at = std::find(logits.begin(), logits.end(), state.largest) - logits.begin();
  return static_cast<int32_t>(block * kVocabBlock) + static_cast<int32_t>(at);
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// All tokens with low <= logit < high, by rising index, without weights. Blocks below are not read.
std::span<Candidate> Collect(const RowState& state, float low, float high) {
  const SampleScratch& s = state.scratch;
  const size_t n = FindBetween(state.logits, s.block_largest, low, high, s.tokens);
  for (size_t i = 0; i < n; ++i) {
    s.candidates[i] = {.logit = state.logits[static_cast<size_t>(s.tokens[i])], .token = s.tokens[i]};
  }
  return {s.candidates, n};
}

double MassOf(std::span<const Candidate> candidates) {
  double mass = 0;
  for (const Candidate& candidate : candidates) mass += double{candidate.weight};
  return mass;
}

// The k largest and all equal to the last of them.
std::span<Candidate> CollectTopK(const RowState& state, size_t k) {
  const SampleScratch& s = state.scratch;
  const float bound = TopKBound({s.block_largest, VocabBlocks(state.logits.size())}, k, s.values);
  std::span<Candidate> found = Collect(state, bound, kInfinity);
  for (size_t i = 0; i < found.size(); ++i) s.values[i] = found[i].logit;
  const float kth = LargestAt({s.values, found.size()}, k - 1);
  const auto end = std::remove_if(found.begin(), found.end(), [&](const Candidate& c) { return c.logit < kth; });
  found = found.first(static_cast<size_t>(end - found.begin()));
  for (size_t i = 0; i < found.size(); ++i) s.values[i] = found[i].logit;
  WeighLogits({s.values, found.size()}, state.largest, state.row->temperature, s.values);
  for (size_t i = 0; i < found.size(); ++i) found[i].weight = s.values[i];
  return found;
}

// The last token of the smallest set from the top whose mass reaches `target`: a quickselect by mass, O(n).
Candidate LastKept(const RowState& state, std::span<const Candidate> candidates, double target) {
  // Equals are in order as they come.
  const auto differs = [&](const Candidate& c) { return c.logit != candidates[0].logit; };
  if (std::none_of(candidates.begin(), candidates.end(), differs)) {
    size_t i = 0;
    for (double mass = candidates[0].weight; mass < target && i + 1 < candidates.size();) {
      mass += double{candidates[++i].weight};
    }
    return candidates[i];
  }
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

// Weights below exp(-88) are 0 in f32: what lies further below the largest logit, in temperatures, has no mass.
constexpr double kReach = 88;

// Halving the range of logits as often as three passes with 8 thresholds narrow it, by 9^3, would take ten.
constexpr int kNarrowings = 3;

// The last token of the smallest set from the top of the whole vocabulary whose mass reaches `target`: the range of
// logits that holds it is narrowed, then its candidates are put in order.
Candidate LastOfMass(const RowState& state, double target) {
  const double reach = double{state.largest} - kReach * double{state.row->temperature};
  float low = static_cast<float>(std::max(double{Smallest(state.logits)}, reach));  // mass from here on >= target
  float high = std::nextafter(state.largest, kInfinity);  // mass from here on = above < target
  double above = 0;
  for (int pass = 0; pass < kNarrowings; ++pass) {
    Thresholds thresholds;
    for (size_t i = 0; i < kThresholds; ++i) {
      const double share = static_cast<double>(i + 1) / (kThresholds + 1);
      thresholds[i] = static_cast<float>(double{low} + (double{high} - double{low}) * share);
    }
    const Masses masses = MassesFrom(state.Weighed(), thresholds);
    for (size_t i = 0; i < kThresholds; ++i) {
      if (masses[i] < target) {
        high = thresholds[i];
        above = masses[i];
        break;
      }
      low = thresholds[i];
    }
  }
  const std::span<Candidate> candidates = Collect(state, low, high);
  for (Candidate& c : candidates) c.weight = state.scratch.values[c.token];
  return LastKept(state, candidates, target - above);
}

// Weights of tokens behind `last` become 0; returns the mass of the others, by blocks in block_mass.
double KeepUpTo(const RowState& state, const Candidate& last) {
  const SampleScratch& s = state.scratch;
  const size_t block = static_cast<size_t>(last.token) / kVocabBlock;
  WeighedRow before = state.Weighed();
  before.logits = before.logits.first(block * kVocabBlock);
  double mass = KeepFrom(before, last.logit, s.block_mass);
  s.block_mass[block] = 0;
  for (size_t i = 0; i < state.Block(block).size(); ++i) {
    const size_t token = block * kVocabBlock + i;
    if (Precedes(last, {.logit = state.logits[token], .token = static_cast<int32_t>(token)})) s.values[token] = 0;
    s.block_mass[block] += double{s.values[token]};
  }
  mass += s.block_mass[block];
  const float above = std::nextafter(last.logit, kInfinity);
  return mass + KeepFrom(state.Weighed(block + 1), above, s.block_mass + block + 1);
}

// The first token, by rising index, whose running weight exceeds `unit` of the mass: first the block, then in it.
int32_t DrawByBlocks(const RowState& state, double mass, double unit) {
  const SampleScratch& s = state.scratch;
  const double target = unit * mass;
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
  const size_t first = chosen * kVocabBlock;
  const std::span<const float> weights = {s.values + first, state.Block(chosen).size()};
  // The block's mass was summed in f32: the share of it carries over, not the difference.
  const double in_block = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double rest = (target - chosen_before) / s.block_mass[chosen] * in_block;
  double sum = 0;
  size_t token = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0.0F) continue;
    token = first + i;
    sum += double{weights[i]};
    if (sum > rest) break;
  }
  return static_cast<int32_t>(token);
}

int32_t SampleToken(RowState state) {
  const SampleRow& row = *state.row;
  const RowScan scan = ScanRow(state.logits, state.scratch.block_largest);
  if (!scan.servable) return -1;
  state.largest = scan.largest;
  if (row.temperature < kGreedyTemperature) return FirstLargest(state);

  const double unit = RandomUnit(row.seed, row.draw);
  const double top_p = double{row.top_p};
  const bool limits_mass = row.top_p < 1.0F;
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < row.vocab) {
    const std::span<const Candidate> candidates = CollectTopK(state, static_cast<size_t>(row.top_k));
    const double target = limits_mass ? top_p * MassOf(candidates) : std::numeric_limits<double>::infinity();
    return DrawFrom(candidates, LastKept(state, candidates, target), unit);
  }
  const SampleScratch& s = state.scratch;
  double mass = WeighBlocks(state.logits, state.largest, row.temperature, s.values, s.block_mass);
  if (limits_mass) mass = KeepUpTo(state, LastOfMass(state, top_p * mass));
  return DrawByBlocks(state, mass, unit);
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
      const double mass = WeighBlocks(logits.RowSpan(row), largest, 1.0F, s.values, s.block_mass);
      ShiftLogits(logits.RowSpan(row), largest, static_cast<float>(std::log(mass)), out.Row(row));
    }
  });
}

}  // namespace df::kernels::cpu
