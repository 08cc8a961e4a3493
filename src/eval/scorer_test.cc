#include "eval/scorer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "format/safetensors.h"
#include "testing/decode.h"
#include "testing/refusal.h"
#include "testing/tiny_weights.h"

namespace df::eval {
namespace {

using testing::ExpectRefusal;
using testing::kTinyVocab;
using testing::TinyWeights;
using testing::ValueOrDie;

// Ten times the distance of an independent f64 run from the stored f32 logits (tests/golden).
constexpr double kLogitTolerance = 1e-4;

const std::string kGolden = DELTAFOLD_SOURCE_DIR "/tests/golden/deltas/llama3-gqa/";

std::shared_ptr<const BaseWeights> LoadGolden(const std::string& name) {
  KernelContext context(1);
  return ValueOrDie(LoadBase(context, ValueOrDie(Checkpoint::Open(kGolden + name))));
}

// log softmax of one row in f64.
std::vector<double> LogProbabilities(std::span<const float> logits) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - largest);
  std::vector<double> result;
  for (const float logit : logits) result.push_back(double{logit} - largest - std::log(sum));
  return result;
}

// Scores of a whole sequence, plainly, from all its logits [n, vocab].
struct Naive {
  SequenceScore score;
  double largest_ratio = 0;  // of log probabilities: how much a divergence moves with them
};
Naive Score(const std::vector<std::vector<float>>& logits, const std::vector<std::vector<float>>& reference,
            const ScoredSequence& sequence) {
  Naive naive;
  for (size_t next = sequence.first_scored; next < sequence.tokens.size(); ++next) {
    const std::vector<double> q = LogProbabilities(logits[next - 1]), p = LogProbabilities(reference[next - 1]);
    ++naive.score.n_tokens;
    naive.score.cross_entropy -= q[static_cast<size_t>(sequence.tokens[next])];
    for (size_t i = 0; i < q.size(); ++i) {
      naive.score.divergence += std::exp(p[i]) * (p[i] - q[i]);
      naive.largest_ratio = std::max(naive.largest_ratio, std::fabs(p[i] - q[i]));
    }
    const int32_t best = testing::ArgMax(logits[next - 1]);
    if (best == sequence.tokens[next]) ++naive.score.n_right;
    if (best == testing::ArgMax(reference[next - 1])) ++naive.score.n_agree;
  }
  return naive;
}

std::vector<std::vector<float>> ReadLogits(const SafetensorsFile& file, const std::string& name) {
  const TensorView* view = file.FindOrNull(name);
  if (view == nullptr) throw std::runtime_error("no tensor " + name);
  std::vector<std::vector<float>> rows(view->shape[0], std::vector<float>(view->shape[1]));
  for (size_t row = 0; row < rows.size(); ++row) ReadFloats(*view, row * rows[row].size(), rows[row]);
  return rows;
}

ScoredSequence GoldenSequence(const SafetensorsFile& file) {
  ScoredSequence sequence;
  const TensorView* view = file.FindOrNull("input_ids");
  for (size_t i = 0; i < view->elements(); ++i) {
    sequence.tokens.push_back(static_cast<int32_t>(LoadUnaligned<int64_t>(view->bytes.data() + 8 * i)));
  }
  return sequence;
}

TEST(Scorer, AgreesWithF64ScoresOfTheReferenceImplementationsLogits) {
  const auto file = ValueOrDie(SafetensorsFile::Open(kGolden + "ft0/reference.safetensors"));
  const ScoredSequence sequence = GoldenSequence(*file);
  const auto full = ReadLogits(*file, "logits_finetune"), base = ReadLogits(*file, "logits_base");
  KernelContext context(2);
  const std::vector<Scored> models = {{.base = LoadGolden("ft0")}, {.base = LoadGolden("base")}};
  const auto scores = ValueOrDie(ScoreSequences(context, models, true, {&sequence, 1}, {}));
  for (const size_t model : {size_t{0}, size_t{1}}) {
    const Naive naive = Score(model == 0 ? full : base, full, sequence);
    const SequenceScore& score = scores[model][0];
    const auto n = static_cast<double>(naive.score.n_tokens);
    EXPECT_EQ(score.n_tokens, naive.score.n_tokens);
    // A logit that is off by e moves a log probability by at most 2 e.
    EXPECT_NEAR(score.cross_entropy, naive.score.cross_entropy, n * 2 * kLogitTolerance);
    // dKL = sum dp (log p - log q) + p (dlog p - dlog q).
    EXPECT_NEAR(score.divergence, naive.score.divergence, n * kLogitTolerance * (2 * naive.largest_ratio + 4));
    EXPECT_EQ(score.n_right, naive.score.n_right);
    EXPECT_EQ(score.n_agree, naive.score.n_agree);
  }
  EXPECT_GT(scores[1][0].divergence, 0.01) << "base and fine-tune are two models";
}

class ScorerOnTiny : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { tiny_ = testing::LoadTinyWeights(); }
  static void TearDownTestSuite() { tiny_ = {}; }

  static std::vector<Scored> Models() {
    return {{.base = tiny_.base, .variant = tiny_.variants.at("delta1")},
            {.base = tiny_.base},
            {.base = tiny_.base, .variant = tiny_.variants.at("adapter")}};
  }
  static ScoredSequence Sequence(uint64_t seed, size_t n_tokens, size_t first_scored) {
    ScoredSequence sequence{.tokens = {}, .first_scored = first_scored};
    for (size_t i = 0; i < n_tokens; ++i) {
      sequence.tokens.push_back(static_cast<int32_t>(RandomBits(seed, i) % kTinyVocab));
    }
    return sequence;
  }
  // Of all lengths: one token, one block, many.
  static std::vector<ScoredSequence> Sequences() {
    return {Sequence(1, 40, 1), Sequence(2, 1, 1),   Sequence(3, 2, 1), Sequence(4, 100, 90),
            Sequence(5, 17, 5), Sequence(6, 16, 16), Sequence(7, 33, 1)};
  }

  static inline TinyWeights tiny_;
};

TEST_F(ScorerOnTiny, AgreesWithScoresOfOneSequenceAtATime) {
  KernelContext context(2);
  const std::vector<ScoredSequence> sequences = Sequences();
  const std::vector<Scored> models = Models();
  const auto scores = ValueOrDie(ScoreSequences(context, models, true, sequences, {}));
  for (size_t i = 0; i < sequences.size(); ++i) {
    std::vector<std::vector<std::vector<float>>> logits;
    for (const Scored& model : models) {
      Decoder decoder(model.base);
      testing::Sequence one(*model.base, model.variant.get(), sequences[i].tokens.size());
      logits.push_back(testing::Logits(context, decoder, one, sequences[i].tokens, kernels::Phase::kPrefill,
                                       sequences[i].tokens.size()));
    }
    for (size_t m = 0; m < models.size(); ++m) {
      SCOPED_TRACE("sequence " + std::to_string(i) + " model " + std::to_string(m));
      const Naive naive = Score(logits[m], logits[0], sequences[i]);
      const auto n = static_cast<double>(naive.score.n_tokens);
      // The same logits bit for bit: f32 log-probabilities up to 30 large remain.
      EXPECT_NEAR(scores[m][i].cross_entropy, naive.score.cross_entropy, n * 30 * 0x1p-22);
      EXPECT_NEAR(scores[m][i].divergence, naive.score.divergence, n * 30 * 0x1p-22);
      EXPECT_EQ(scores[m][i].n_tokens, naive.score.n_tokens);
      EXPECT_EQ(scores[m][i].n_agree, naive.score.n_agree);
      EXPECT_EQ(scores[m][i].n_right, naive.score.n_right);
    }
  }
}

TEST_F(ScorerOnTiny, ChunksAndPacksDoNotChangeAScore) {
  KernelContext context(1);
  const std::vector<ScoredSequence> sequences = Sequences();
  const auto whole = ValueOrDie(ScoreSequences(context, Models(), true, sequences, {}));
  for (const ScorerOptions& options :
       {ScorerOptions{.rows_a_step = 7}, ScorerOptions{.logit_bytes = 1}, ScorerOptions{.kv_tokens = 16},
        ScorerOptions{.rows_a_step = 5, .logit_bytes = 3 * kTinyVocab * 4, .kv_tokens = 1}}) {
    const auto parts = ValueOrDie(ScoreSequences(context, Models(), true, sequences, options));
    for (size_t m = 0; m < whole.size(); ++m) {
      for (size_t i = 0; i < sequences.size(); ++i) {
        EXPECT_EQ(parts[m][i].cross_entropy, whole[m][i].cross_entropy);
        EXPECT_EQ(parts[m][i].divergence, whole[m][i].divergence);
        EXPECT_EQ(parts[m][i].n_agree, whole[m][i].n_agree);
      }
    }
  }
}

TEST_F(ScorerOnTiny, AModelDoesNotDivergeFromItself) {
  KernelContext context(1);
  const std::vector<ScoredSequence> sequences = Sequences();
  const Scored delta = Models()[0];
  const auto scores = ValueOrDie(ScoreSequences(context, std::vector<Scored>{delta, delta}, true, sequences, {}));
  for (const auto& of_model : scores) {
    for (const SequenceScore& score : of_model) {
      EXPECT_EQ(score.divergence, 0);
      EXPECT_EQ(score.n_agree, score.n_tokens);
    }
  }
  const auto alone = ValueOrDie(ScoreSequences(context, {&delta, 1}, false, sequences, {}));
  EXPECT_EQ(alone[0][0].cross_entropy, scores[0][0].cross_entropy);
  EXPECT_EQ(alone[0][0].n_agree, 0U) << "there is no reference";
}

TEST_F(ScorerOnTiny, RefusesWhatNoModelCanScore) {
  KernelContext context(1);
  const auto refuse = [&](const ScoredSequence& sequence) {
    return ScoreSequences(context, Models(), true, {&sequence, 1}, {});
  };
  ExpectRefusal(refuse({.tokens = {1, static_cast<int32_t>(kTinyVocab)}}), StatusCode::kInvalidArgument, {"260"});
  ExpectRefusal(refuse({.tokens = {1, -1}}), StatusCode::kInvalidArgument, {"-1"});
  ExpectRefusal(refuse({.tokens = {1, 2}, .first_scored = 0}), StatusCode::kInvalidArgument, {"first token"});
  ExpectRefusal(refuse(Sequence(1, testing::kTinyPositions + 1, 1)), StatusCode::kInvalidArgument, {"257", "256"});
}

TEST_F(ScorerOnTiny, NamesLogitsThatAreNoNumbers) {
  KernelContext context(1);
  const Scored broken = {.base = tiny_.base, .variant = tiny_.variants.at("broken")};
  const ScoredSequence sequence = Sequence(1, 20, 1);
  ExpectRefusal(ScoreSequences(context, {&broken, 1}, false, {&sequence, 1}, {}), StatusCode::kCorrupt, {"finite"});
}

TEST_F(ScorerOnTiny, CountsWhatItFedAndStopsWhenAsked) {
  KernelContext context(1);
  const std::vector<ScoredSequence> sequences = Sequences();
  uint64_t last = 0;
  ScorerOptions options = {.rows_a_step = 8};
  options.on_progress = [&last](uint64_t done) {
    EXPECT_GT(done, last);
    last = done;
    return true;
  };
  DF_EXPECT_OK(ScoreSequences(context, Models(), true, sequences, options));
  EXPECT_EQ(last, 3 * FedTokens(sequences));
  options.on_progress = [](uint64_t) { return false; };
  ExpectRefusal(ScoreSequences(context, Models(), true, sequences, options), StatusCode::kCancelled, {});
}

}  // namespace
}  // namespace df::eval
