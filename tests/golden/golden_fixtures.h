// Access to tests/golden (README.md there says what each tensor is).
#ifndef DELTAFOLD_TESTS_GOLDEN_GOLDEN_FIXTURES_H_
#define DELTAFOLD_TESTS_GOLDEN_GOLDEN_FIXTURES_H_

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "base/rng.h"
#include "format/safetensors.h"
#include "kernels/target.h"
#include "model/decoder.h"
#include "testing/decode.h"
#include "testing/status_matchers.h"

namespace df::testing {

// Ten times the distance of an independent float64 run from the stored f32 logits.
inline constexpr float kLogitTolerance = 1e-4F;
// Without --batch-invariant paths are chosen by what a step holds. 14-bit tables are within 1e-3 of a variant's own
// part of every sum (kernels/linear.h); logits of this family, which are a few units large, may differ by as much.
inline constexpr float kDefaultModeTolerance = 1e-3F;

inline std::string GoldenPath(const std::string& relative) {
  return std::string(DELTAFOLD_SOURCE_DIR) + "/tests/golden/" + relative;
}

inline std::vector<std::string> SubDirectories(const std::string& relative) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(GoldenPath(relative))) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

inline std::vector<int32_t> ReadIds(const SafetensorsFile& file, const std::string& name) {
  const TensorView* view = file.FindOrNull(name);
  if (view == nullptr || view->dtype != DType::kI64) throw std::runtime_error("no ids " + name);
  std::vector<int32_t> ids(view->elements());
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>(LoadUnaligned<int64_t>(view->bytes.data() + 8 * i));
  }
  return ids;
}

inline std::vector<float> ReadAll(const SafetensorsFile& file, const std::string& name) {
  const TensorView* view = file.FindOrNull(name);
  if (view == nullptr) throw std::runtime_error("no tensor " + name);
  std::vector<float> values(view->elements());
  ReadFloats(*view, 0, values);
  return values;
}

// Largest distance of `rows` from the stored [n, vocab] tensor.
inline float MaxDistance(const std::vector<std::vector<float>>& rows, const std::vector<float>& expected) {
  float worst = 0;
  size_t at = 0;
  for (const auto& row : rows) {
    for (const float value : row) {
      const float distance = std::fabs(value - expected[at++]);
      worst = distance <= worst ? worst : distance;  // a NaN distance stays
    }
  }
  return at == expected.size() ? worst : INFINITY;
}

// Every way of running the prompt must give logits within tolerance of `expected`; token by token and all at once in
// the decode phase, and any chunking of the prefill, must agree bit for bit where that is asked for.
inline void ExpectLogits(const std::shared_ptr<const BaseWeights>& base, const VariantWeights* variant,
                         const std::vector<int32_t>& ids, const std::vector<float>& expected) {
  KernelContext context(2);
  Decoder decoder(base);
  for (const kernels::Phase phase : {kernels::Phase::kPrefill, kernels::Phase::kDecode}) {
    std::vector<std::vector<float>> first;
    for (const size_t chunk : {ids.size(), size_t{7}, size_t{1}}) {
      Sequence sequence(*base, variant, ids.size());
      const auto rows = Logits(context, decoder, sequence, ids, phase, chunk);
      if (first.empty()) {
        first = rows;
        EXPECT_LE(MaxDistance(rows, expected), kLogitTolerance)
            << (phase == kernels::Phase::kPrefill ? "prefill" : "decode") << " on " << kernels::CurrentTarget();
      }
      EXPECT_EQ(rows, first) << "chunks of " << chunk << " on " << kernels::CurrentTarget();
    }
  }
  // By default: with chunks of 7 the decode phase takes 14-bit tables.
  context.options = {.batch_invariant = false};
  Sequence sequence(*base, variant, ids.size());
  const auto rows = Logits(context, decoder, sequence, ids, kernels::Phase::kDecode, 7);
  EXPECT_LE(MaxDistance(rows, expected), kDefaultModeTolerance) << "by default on " << kernels::CurrentTarget();
}

// Runs `body` once for each vector target of the machine and the scalar one.
template <typename Body>
void ForEachTarget(const Body& body) {
  for (const std::string& target : kernels::AvailableTargets()) {
    SCOPED_TRACE("target " + target);
    DF_ASSERT_OK(kernels::SetTarget(target));
    body();
  }
  DF_ASSERT_OK(kernels::SetTarget("auto"));
}

inline std::shared_ptr<const BaseWeights> LoadGoldenBase(const std::string& relative) {
  KernelContext context(2);
  const auto checkpoint = ValueOrDie(Checkpoint::Open(GoldenPath(relative)));
  return ValueOrDie(LoadBase(context, checkpoint));
}

}  // namespace df::testing

#endif  // DELTAFOLD_TESTS_GOLDEN_GOLDEN_FIXTURES_H_
