// What is served is what is stored: a delta of every code gives the logits of its own full checkpoint.
#include <gtest/gtest.h>

#include <cmath>

#include "codec/compressor.h"
#include "codec/materialize.h"
#include "format/delta_dir.h"
#include "kernels/target.h"
#include "model/weights.h"
#include "testing/decode.h"
#include "testing/made_checkpoint.h"

namespace df {
namespace {

using testing::MadeModel;
using testing::TemporaryDirectory;
using testing::ValueOrDie;
using testing::WriteModel;

using Rows = std::vector<std::vector<float>>;

Rows LogitsOf(const std::shared_ptr<const BaseWeights>& base, const VariantWeights* variant,
              const std::vector<int32_t>& ids, kernels::Phase phase, size_t chunk) {
  KernelContext context(2);
  Decoder decoder(base);
  testing::Sequence sequence(*base, variant, ids.size());
  return testing::Logits(context, decoder, sequence, ids, phase, chunk);
}

// The full checkpoint rounds W = base + D^ to f32 and sums in another order: some roundings of a sum of |w x| for each
// of a few matrices one after another. Logits here are of the order of 1.
constexpr double kTolerance = 1e-4;

constexpr size_t kVocab = 75;

TEST(Served, EveryCodeGivesTheLogitsOfItsFullCheckpoint) {
  const MadeModel base{.d_model = 64, .d_ff = 96, .vocab = 70, .tied = false, .stores_head = true};
  MadeModel fine_tune = base;
  fine_tune.change = 0.05;
  fine_tune.vocab = kVocab;
  TemporaryDirectory directory;
  WriteModel(base, directory.Sub("base"));
  WriteModel(fine_tune, directory.Sub("fine-tune"));
  const auto base_checkpoint = ValueOrDie(Checkpoint::Open(directory.Sub("base")));
  const auto tuned_checkpoint = ValueOrDie(Checkpoint::Open(directory.Sub("fine-tune")));
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 20; ++i) ids.push_back(i * 31 % 75);  // new rows too
  ThreadPool pool(2);
  KernelContext context(2);
  const auto base_weights = ValueOrDie(LoadBase(context, base_checkpoint));
  for (const auto& [matrices, vocabulary] :
       std::vector<std::pair<const char*, const char*>>{{"scalar", "scalar"},
                                                        {"row", "raw"},
                                                        {"column", "column"},
                                                        {"rank1", "int8"},
                                                        {"planes3", "planes2"},
                                                        {"lowrank:5", "rows"},
                                                        {"lowrank:4", "int8"},
                                                        {"rank1+lowrank:4", "exact"},
                                                        {"int8", "row"},
                                                        {"rows", "rank1"},
                                                        {"raw", "int8"}}) {
    SCOPED_TRACE(std::string(matrices) + ", " + vocabulary);
    const std::string delta_path = directory.Sub("delta"), full_path = directory.Sub("full");
    const CompressOptions options{.matrices = ValueOrDie(ParseCode(matrices)),
                                  .embeddings = ValueOrDie(ParseCode(vocabulary)),
                                  .head = ValueOrDie(ParseCode(vocabulary)),
                                  .replace = true};
    DF_ASSERT_OK(Compress(pool, *base_checkpoint, *tuned_checkpoint, delta_path, options));
    DF_ASSERT_OK(Materialize(pool, *base_checkpoint, delta_path, full_path, {.dtype = DType::kF32, .replace = true}));
    const auto full = ValueOrDie(LoadBase(context, ValueOrDie(Checkpoint::Open(full_path))));
    const Rows want = LogitsOf(full, nullptr, ids, kernels::Phase::kPrefill, ids.size());
    for (const std::string& target : kernels::AvailableTargets()) {
      ASSERT_TRUE(kernels::SetTarget(target).ok());
      const auto delta = ValueOrDie(DeltaDirectory::Open(delta_path));
      const auto variant = ValueOrDie(LoadDelta(context, *base_weights, *delta));
      for (const kernels::Phase phase : {kernels::Phase::kPrefill, kernels::Phase::kDecode}) {
        const Rows got = LogitsOf(base_weights, variant.get(), ids, phase, ids.size());
        ASSERT_EQ(got.size(), want.size());
        for (size_t row = 0; row < got.size(); ++row) {
          ASSERT_EQ(got[row].size(), 75U);
          for (size_t i = 0; i < 75; ++i) ASSERT_NEAR(double{got[row][i]}, double{want[row][i]}, kTolerance) << target;
        }
        EXPECT_EQ(LogitsOf(base_weights, variant.get(), ids, phase, 7), got) << target << ": bits in other batches";
      }
    }
    ASSERT_TRUE(kernels::SetTarget("auto").ok());
  }
}

}  // namespace
}  // namespace df
