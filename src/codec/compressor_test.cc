#include "codec/compressor.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <limits>
#include <set>
#include <thread>

#include "codec/bound_variant.h"
#include "codec/decode.h"
#include "codec/materialize.h"
#include "codec/verify.h"
#include "testing/made_checkpoint.h"
#include "testing/process_memory.h"

namespace df {
namespace {

using testing::Floats;
using testing::MadeModel;
using testing::TemporaryDirectory;
using testing::ValueOrDie;
using testing::WriteModel;

// "auto" is none: it is chosen.
std::optional<Code> CodeOf(const std::string& text) {
  return text == "auto" ? std::nullopt : std::optional(ValueOrDie(ParseCode(text)));
}

std::string FileContent(const std::string& path) { return ValueOrDie(ReadFileBounded(path, size_t{1} << 30)); }

// Base, fine-tune and delta in a directory of their own.
class CompressTest : public ::testing::Test {
 protected:
  void Write(const MadeModel& base, const MadeModel& fine_tune,
             const std::function<void(const std::string&, std::vector<float>&)>& edit = {}) {
    WriteModel(base, Base());
    WriteModel(fine_tune, FineTune(), edit);
  }
  Result<CompressReport> Run(const CompressOptions& options = {}, size_t n_threads = 2) {
    base_ = ValueOrDie(Checkpoint::Open(Base()));
    fine_tune_ = ValueOrDie(Checkpoint::Open(FineTune()));
    ThreadPool pool(n_threads);
    CompressOptions named = options;
    named.base_name = "base";
    named.model_name = "fine-tune";
    return Compress(pool, *base_, *fine_tune_, Delta(), named);
  }
  BoundVariant Variant() { return ValueOrDie(BindVariant(*base_, Delta())); }

  // Writes the full checkpoint of the delta as f32 and opens it.
  std::shared_ptr<const Checkpoint> Materialized(std::optional<DType> dtype = DType::kF32) {
    ThreadPool pool(2);
    MaterializeOptions options{.dtype = dtype, .replace = true};
    DF_EXPECT_OK(Materialize(pool, *base_, Delta(), directory_.Sub("full"), options));
    return ValueOrDie(Checkpoint::Open(directory_.Sub("full")));
  }
  // Largest relative Frobenius error over all weights against the fine-tune, as verify measures it.
  double WorstError() {
    ThreadPool pool(2);
    const VerifyReport report = ValueOrDie(Verify(pool, *base_, Delta(), fine_tune_.get(), {}));
    double worst = 0;
    for (const VerifiedWeight& weight : report.weights) worst = std::max(worst, weight.quality->relative_frobenius);
    return worst;
  }
  const WeightReport& Find(const CompressReport& report, const std::string& name) {
    for (const WeightReport& weight : report.weights) {
      if (weight.name == name) return weight;
    }
    throw std::runtime_error("no weight " + name + " in the report");
  }

  std::string Base() const { return directory_.Sub("base"); }
  std::string FineTune() const { return directory_.Sub("fine-tune"); }
  std::string Delta() const { return directory_.Sub("delta"); }

  TemporaryDirectory directory_;
  std::shared_ptr<const Checkpoint> base_, fine_tune_;
};

TEST_F(CompressTest, RestoresBasePlusDecodedDifferenceExactly) {
  for (const ScaleKind scale : {ScaleKind::kScalar, ScaleKind::kRow, ScaleKind::kColumn, ScaleKind::kRank1}) {
    for (const size_t n_planes : {size_t{1}, size_t{2}}) {
      Write({}, {.change = 0.1});
      CompressOptions options{.matrices = Code{.sign = {.scale = scale, .n_planes = n_planes}}, .replace = true};
      DF_ASSERT_OK(Run(options));
      const auto full = Materialized();
      const BoundVariant variant = Variant();
      ASSERT_EQ(full->names().size(), variant.weights.size());
      for (const BoundWeight& weight : variant.weights) {
        const RowDecoder decoder(weight.base->view, weight.change);
        std::vector<float> expected(decoder.d_out() * decoder.d_in());
        for (size_t row = 0; row < decoder.d_out(); ++row) {
          decoder.Decode(row, std::span(expected).subspan(row * decoder.d_in(), decoder.d_in()));
        }
        EXPECT_EQ(Floats(full->FindOrNull(weight.slot.name)->view), expected) << weight.slot.name;
      }
    }
  }
}

TEST_F(CompressTest, StoredPlanesAreThoseOfTheEncoder) {
  Write({}, {.change = 0.1});
  DF_ASSERT_OK(Run());
  ThreadPool pool(1);
  const BoundVariant variant = Variant();
  for (const BoundWeight& weight : variant.weights) {
    if (weight.slot.kind != SlotKind::kMatrix) continue;
    const WeightPair pair{weight.slot.name, weight.base->view, fine_tune_->FindOrNull(weight.slot.name)->view};
    const EncodedWeight encoded = ValueOrDie(EncodeSign(pool, pair, {}));
    ASSERT_EQ(weight.change.planes.size(), 1U);
    EXPECT_TRUE(std::ranges::equal(weight.change.planes[0].bits, encoded.delta.planes[0].bits));
    EXPECT_EQ(Floats(*weight.change.planes[0].row_scale), Floats(*encoded.delta.planes[0].row_scale));
    EXPECT_EQ(Floats(*weight.change.planes[0].col_scale), Floats(*encoded.delta.planes[0].col_scale));
  }
}

TEST_F(CompressTest, VerifyMeasuresWhatCompressReported) {
  Write({}, {.change = 0.1});
  const CompressReport report = ValueOrDie(Run());
  ThreadPool pool(2);
  const VerifyReport verified = ValueOrDie(Verify(pool, *base_, Delta(), fine_tune_.get(), {}));
  ASSERT_EQ(verified.weights.size(), report.weights.size());
  for (size_t i = 0; i < report.weights.size(); ++i) {
    // verify subtracts after rounding base + D^ to f32: 2^-24 of |W| <= 0.6 against |D| of about 0.03
    EXPECT_NEAR(verified.weights[i].quality->relative_frobenius, report.weights[i].quality.relative_frobenius, 1e-5);
    EXPECT_NEAR(verified.weights[i].quality->cosine, report.weights[i].quality.cosine, 1e-5);
    EXPECT_EQ(verified.weights[i].code, report.weights[i].code);
    EXPECT_EQ(verified.weights[i].bytes, report.weights[i].bytes);
  }
  EXPECT_NEAR(*verified.mean_relative_frobenius, report.mean_relative_frobenius, 1e-5);
}

TEST_F(CompressTest, WritesTheSameBytesWithAnyNumberOfThreads) {
  Write({}, {.change = 0.1});
  CompressOptions options{.matrices = CodeOf("planes2+lowrank:3"), .embeddings = CodeOf("int8"), .replace = true};
  std::set<std::string> models, configs, cards;
  for (const size_t n_threads : {size_t{1}, size_t{2}, size_t{3}}) {
    DF_ASSERT_OK(Run(options, n_threads));
    models.insert(FileContent(Delta() + "/delta_model.safetensors"));
    configs.insert(FileContent(Delta() + "/delta_config.json"));
    cards.insert(FileContent(Delta() + "/README.md"));
  }
  EXPECT_EQ(models.size(), 1U);
  EXPECT_EQ(configs.size(), 1U);
  EXPECT_EQ(cards.size(), 1U);
}

TEST_F(CompressTest, StoresNothingOfWhatDidNotChange) {
  Write({}, {});
  const CompressReport report = ValueOrDie(Run());
  EXPECT_EQ(report.delta_bytes, 0U);
  EXPECT_EQ(report.n_unchanged, report.weights.size());
  EXPECT_EQ(WorstError(), 0.0);
}

TEST_F(CompressTest, AcceptsEveryPairOfStoredTypes) {
  for (const DType base : {DType::kBf16, DType::kF16, DType::kF32}) {
    for (const DType fine_tune : {DType::kBf16, DType::kF16, DType::kF32}) {
      Write({.dtype = base}, {.dtype = fine_tune, .change = 0.1});
      CompressOptions options{.embeddings = CodeOf("planes2"), .replace = true};
      const CompressReport report = ValueOrDie(Run(options));
      EXPECT_GT(report.mean_cosine, 0.7) << DTypeName(base) << " " << DTypeName(fine_tune);
    }
  }
}

// A model of which vectors take little, changed everywhere.
MadeModel Wide() {
  MadeModel model{.d_model = 64, .d_ff = 128, .vocab = 96};
  return model;
}

TEST_F(CompressTest, AutoKeepsWithinItsBytesAndMoreBytesAreNeverWorse) {
  MadeModel changed = Wide();
  changed.change = 0.1;
  Write(Wide(), changed);
  double last = HUGE_VAL;
  for (const double share : {0.08, 0.12, 0.25, 0.6, 1.0}) {
    const Budget budget{.unit = Budget::Unit::kShareOfModel, .value = share};
    const CompressReport report =
        ValueOrDie(Run({.matrices = {}, .embeddings = {}, .head = {}, .budget = budget, .replace = true}));
    EXPECT_LE(report.delta_bytes, budget.Bytes(0, report.full_bytes)) << share;
    double loss = 0;
    for (const WeightReport& weight : report.weights) {
      EXPECT_EQ(weight.candidates.empty(), weight.kind == SlotKind::kVector) << weight.name;
      loss += std::pow(weight.quality.relative_frobenius, 2);
    }
    EXPECT_LE(loss, last * 1.05) << share;
    last = loss;
  }
  EXPECT_EQ(last, 0) << "the whole model may be stored";
}

TEST_F(CompressTest, AutoKeepsItsErrorAndSaysWhatItChoseFrom) {
  MadeModel changed = Wide();
  changed.change = 0.1;
  changed.unchanged = {{"model.layers.0.mlp.up_proj.weight", true}};
  Write(Wide(), changed);
  for (const double bound : {0.7, 0.4, 0.1, 0.0}) {
    const CompressReport report =
        ValueOrDie(Run({.matrices = {}, .embeddings = {}, .head = {}, .max_error = bound, .replace = true}));
    for (const WeightReport& weight : report.weights) {
      EXPECT_LE(weight.quality.relative_frobenius, bound) << weight.name << " " << weight.code;
    }
    EXPECT_LE(WorstError(), bound + 1e-5);  // verify subtracts after rounding base + D^
    EXPECT_EQ(Find(report, "model.layers.0.mlp.up_proj.weight").code, "same");
  }
  const Json config = ValueOrDie(ReadJsonFile(Delta() + "/delta_config.json"));
  EXPECT_EQ(config.at("codec").at("code"), "auto");
  EXPECT_EQ(config.at("codec").at("bound"), "error 0.0");
  size_t n_lists = 0;
  for (const Json& tensor : config.at("tensors")) n_lists += tensor.contains("candidates") ? 1 : 0;
  EXPECT_GE(n_lists, 14U);
}

// Factors of low ranks take four bytes where two would lose more than the fine-tune's rounding, or the rank, does.
TEST_F(CompressTest, AutoKeepsWithinItsBytesWhateverTheTypes) {
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    MadeModel base = Wide(), changed = Wide();
    base.dtype = changed.dtype = dtype;
    changed.change = 0.1;
    Write(base, changed);
    for (const double share : {0.06, 0.08, 0.1}) {
      const Budget budget{.unit = Budget::Unit::kShareOfModel, .value = share};
      const auto report = Run({.matrices = {}, .embeddings = {}, .head = {}, .budget = budget, .replace = true});
      DF_ASSERT_OK(report);
      EXPECT_LE(report->delta_bytes, budget.Bytes(0, report->full_bytes)) << DTypeName(dtype) << " " << share;
    }
  }
}

// In bf16, one weight in twenty an ulp up: no more than rounding, and all of what training did.
TEST_F(CompressTest, NoChangeCountsAsUnchangedHoweverSmall) {
  Write(Wide(), Wide(), [](const std::string& name, std::vector<float>& values) {
    if (!name.ends_with("_proj.weight")) return;
    for (size_t i = 0; i < values.size(); i += 20) values[i] *= 1 + 0x1p-7F;
  });
  const CompressReport report = ValueOrDie(Run({.matrices = CodeOf("lowrank"), .replace = true}));
  const auto full = Materialized({});
  for (const WeightReport& weight : report.weights) {
    EXPECT_EQ(weight.bytes == 0, weight.kind != SlotKind::kMatrix) << weight.name << " " << weight.code;
    EXPECT_EQ(Floats(full->FindOrNull(weight.name)->view), Floats(fine_tune_->FindOrNull(weight.name)->view));
  }
}

// The delta of a fine-tune against a model that is the base itself: everything the delta does is wrong.
TEST_F(CompressTest, VerifyCallsNoDeltaRightForAFineTuneThatDidNotChange) {
  Write({}, {.change = 0.1});
  DF_ASSERT_OK(Run());
  ThreadPool pool(2);
  const VerifyReport report = ValueOrDie(Verify(pool, *base_, Delta(), base_.get(), {}));
  for (const VerifiedWeight& weight : report.weights) {
    EXPECT_EQ(weight.quality->relative_frobenius, weight.bytes > 0 ? HUGE_VAL : 0) << weight.name;
    EXPECT_EQ(weight.quality->cosine, weight.bytes > 0 ? 0 : 1) << weight.name;
  }
  EXPECT_EQ(report.mean_relative_frobenius, HUGE_VAL);
}

TEST_F(CompressTest, AutoSaysWhenItsBoundCannotBeMet) {
  Write({}, {.change = 0.1});
  const auto none = Run({.matrices = {}, .budget = {.unit = Budget::Unit::kBytes, .value = 10}});
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_NE(none.status().message().find("10 are allowed"), std::string::npos) << none.status().message();
  EXPECT_FALSE(std::filesystem::exists(Delta()));
}

TEST_F(CompressTest, RefusesALowRankForAGrownVocabulary) {
  Write({.tied = false, .stores_head = true}, {.vocab = 29, .tied = false, .stores_head = true, .change = 0.1});
  for (const CompressOptions& options :
       {CompressOptions{.embeddings = CodeOf("rank1+lowrank:4")}, CompressOptions{.head = CodeOf("lowrank:4")}}) {
    const auto report = Run(options);
    ASSERT_FALSE(report.ok());
    EXPECT_EQ(report.status().code(), StatusCode::kUnsupported);
    EXPECT_NE(report.status().message().find("grew from 20 to 29"), std::string::npos) << report.status().message();
  }
}

TEST_F(CompressTest, AWiderFineTuneKeepsItsExactVectors) {
  Write({}, {.dtype = DType::kF32, .change = 0.1}, [](const std::string& name, std::vector<float>& values) {
    if (name == kFinalNormName) values[0] = 1.0F + 0x1p-20F;  // has no bf16
  });
  DF_ASSERT_OK(Run());
  EXPECT_EQ(Floats(Materialized()->FindOrNull(kFinalNormName)->view)[0], 1.0F + 0x1p-20F);
}

TEST_F(CompressTest, FewChangedEmbeddingRowsAreStoredAlone) {
  Write({}, {.change = 0.1, .unchanged = {{kEmbeddingName, true}}},
        [](const std::string& name, std::vector<float>& values) {
          if (name == kEmbeddingName) values[3 * 16] += 1;
        });
  const CompressReport report = ValueOrDie(Run());
  EXPECT_EQ(Find(report, kEmbeddingName).code, "rows 1");
  EXPECT_EQ(Floats(Materialized()->FindOrNull(kEmbeddingName)->view),
            Floats(fine_tune_->FindOrNull(kEmbeddingName)->view));
}

TEST_F(CompressTest, EveryVocabularyCodeServesGrownAndShrunkVocabularies) {
  for (const size_t vocab : {size_t{17}, size_t{20}, size_t{29}}) {
    for (const char* code : {"exact", "raw", "rows", "planes2", "scalar", "column", "int8", "auto"}) {
      for (const bool changed : {false, true}) {
        MadeModel fine_tune{.vocab = vocab, .tied = false, .stores_head = true, .change = 0.1};
        if (!changed) fine_tune.unchanged = {{kEmbeddingName, true}, {kHeadName, true}};
        Write({.tied = false, .stores_head = true}, fine_tune);
        const CompressReport report =
            ValueOrDie(Run({.embeddings = CodeOf(code), .head = CodeOf(code), .max_error = 0.02, .replace = true}));
        const auto full = Materialized();
        for (const char* name : {kEmbeddingName, kHeadName}) {
          const std::vector<float> got = Floats(full->FindOrNull(name)->view);
          const std::vector<float> want = Floats(fine_tune_->FindOrNull(name)->view);
          const std::vector<float> start = Floats(base_->FindOrNull(name)->view);
          ASSERT_EQ(got.size(), want.size());
          const bool lossy = CodeOf(code).value_or(Code{}).kind == CodeKind::kSign && CodeOf(code) && changed;
          const bool bytes = std::set<std::string>{"int8", "auto"}.contains(code);  // new rows too
          double lost = 0, difference = 0;                                          // of the rows that both have
          for (size_t i = 0; i < got.size(); ++i) {
            const double error = static_cast<double>(got[i]) - static_cast<double>(want[i]);
            if (i < start.size()) {
              lost += error * error;
              difference += std::pow(static_cast<double>(start[i]) - static_cast<double>(want[i]), 2);
            }
            if (lossy && i < start.size()) continue;
            ASSERT_NEAR(error, 0, bytes ? 0.6 / 254 + 1e-6 : 0)  // half a step of weights below 0.6
                << name << " " << i << " " << Find(report, name).code;
          }
          // Of uniform differences a scale leaves half, two planes a quarter.
          const double bound = bytes ? 0.021 : lossy ? 0.6 : 0;
          EXPECT_LE(std::sqrt(lost), bound * std::sqrt(difference) + 1e-6) << name << " " << code << " " << vocab;
        }
      }
    }
  }
}

struct HeadCase {
  const char* what;
  bool base_tied, base_stores_head;
  bool tied, stores_head;
  bool head_unchanged, embedding_unchanged;
};

// Whatever the two say about tying: the variant's logits come from the fine-tune's own head.
TEST_F(CompressTest, KeepsTheHeadThroughEveryChangeOfTying) {
  const std::vector<HeadCase> cases = {
      {"both tied", true, false, true, false, false, false},
      {"both untied", false, true, false, true, false, false},
      {"both untied, head unchanged", false, true, false, true, true, false},
      {"untied by the fine-tune", true, false, false, true, false, false},
      {"tied by the fine-tune", false, true, true, false, false, false},
      {"config tied, the fine-tune stores a head", true, false, true, true, false, false},
      {"config tied, both store a head", true, true, true, true, false, false},
      {"config tied, both store the same head", true, true, true, true, true, false},
      {"config tied, only the base stores a head", true, true, true, false, false, false},
      {"config tied, only the base stores a head, same embedding", true, true, true, false, false, true},
  };
  for (const HeadCase& c : cases) {
    MadeModel fine_tune{.tied = c.tied, .stores_head = c.stores_head, .change = 0.1};
    if (c.head_unchanged) fine_tune.unchanged[kHeadName] = true;
    if (c.embedding_unchanged) fine_tune.unchanged[kEmbeddingName] = true;
    Write({.tied = c.base_tied, .stores_head = c.base_stores_head}, fine_tune);
    DF_ASSERT_OK(Run({.replace = true}));
    const BoundVariant variant = Variant();
    const char* name = variant.tied ? kEmbeddingName : kHeadName;
    const auto full = Materialized();
    EXPECT_EQ(Floats(full->FindOrNull(name)->view),
              Floats(fine_tune_->FindOrNull(c.stores_head ? kHeadName : kEmbeddingName)->view))
        << c.what;
  }
}

TEST_F(CompressTest, AHeadUntiedByTheFineTuneIsCodedAgainstTheEmbedding) {
  // A head that is the base's embedding but for one row.
  Write({}, {.tied = false, .stores_head = true, .change = 0.1},
        [&](const std::string& name, std::vector<float>& values) {
          if (name != kHeadName) return;
          values = testing::ValuesOf({}, kEmbeddingName, values.size());
          values[5 * 16] += 1;
        });
  EXPECT_EQ(Find(ValueOrDie(Run()), kHeadName).code, "rows 1");
}

TEST_F(CompressTest, CopiesTheConfigAndOnlyThoseTextFilesThatDiffer) {
  Write({}, {.change = 0.1});
  for (const std::string& where : {Base(), FineTune()}) {
    DF_ASSERT_OK(WriteFileAtomically(where + "/tokenizer.json", "{}"));
    DF_ASSERT_OK(WriteFileAtomically(where + "/chat_template.jinja", where));
  }
  DF_ASSERT_OK(WriteFileAtomically(FineTune() + "/generation_config.json", "{\"eos_token_id\": 3}"));
  const CompressReport report = ValueOrDie(Run());
  EXPECT_EQ(report.files, (std::vector<std::string>{"config.json", "generation_config.json", "chat_template.jinja"}));
  EXPECT_EQ(FileContent(Delta() + "/config.json"), FileContent(FineTune() + "/config.json"));
  EXPECT_FALSE(std::filesystem::exists(Delta() + "/tokenizer.json"));
  Materialized();
  EXPECT_EQ(FileContent(directory_.Sub("full") + "/tokenizer.json"), "{}") << "carried over from the base";
  EXPECT_EQ(FileContent(directory_.Sub("full") + "/chat_template.jinja"), FineTune());
}

// They are read all together or not at all, so one that differs brings the others along.
TEST_F(CompressTest, CopiesChatTemplatesTogetherWhenOneDiffers) {
  Write({}, {.change = 0.1});
  const std::string folder = "/additional_chat_templates";
  for (const std::string& where : {Base(), FineTune()}) {
    std::filesystem::create_directory(where + folder);
    for (const std::string name : {"/chat_template.jinja", "/additional_chat_templates/rag.jinja"}) {
      DF_ASSERT_OK(WriteFileAtomically(where + name, "as in the base"));
    }
  }
  EXPECT_EQ(ValueOrDie(Run()).files, (std::vector<std::string>{"config.json"}));
  DF_ASSERT_OK(WriteFileAtomically(FineTune() + folder + "/tool_use.jinja", "own"));
  const CompressReport report = ValueOrDie(Run({.replace = true}));
  EXPECT_EQ(report.files,
            (std::vector<std::string>{"config.json", "additional_chat_templates/rag.jinja",
                                      "additional_chat_templates/tool_use.jinja", "chat_template.jinja"}));
  Materialized();
  EXPECT_EQ(FileContent(directory_.Sub("full") + folder + "/tool_use.jinja"), "own");
  DF_ASSERT_OK(WriteFileAtomically(Delta() + folder + "/tool_use.jinja", "changed"));
  EXPECT_EQ(ValueOrDie(DeltaDirectory::Open(Delta()))->VerifyDigest().code(), StatusCode::kCorrupt);
}

TEST_F(CompressTest, ATemplateInTheVariantsConfigIsNotOverruledByAFileOfTheBase) {
  Write({}, {.change = 0.1});
  DF_ASSERT_OK(WriteFileAtomically(Base() + "/chat_template.jinja", "the base's"));
  DF_ASSERT_OK(WriteFileAtomically(FineTune() + "/tokenizer_config.json", R"({"chat_template": "own"})"));
  DF_ASSERT_OK(Run());
  Materialized();
  EXPECT_FALSE(std::filesystem::exists(directory_.Sub("full") + "/chat_template.jinja"));
}

TEST_F(CompressTest, ALinkToNothingIsNotAnAbsentFile) {
  Write({}, {.change = 0.1});
  for (const std::string name : {"tokenizer.json", "chat_template.jinja", "generation_config.json"}) {
    const std::string path = FineTune() + "/" + name;
    std::filesystem::create_symlink("gone", path);
    const auto report = Run();
    EXPECT_EQ(report.status().code(), StatusCode::kCorrupt) << name;
    EXPECT_NE(report.status().message().find(path), std::string::npos) << report.status().message();
    std::filesystem::remove(path);
  }
}

TEST_F(CompressTest, RefusesATerabyteOfTextFileBeforeCopyingIt) {
  Write({}, {.change = 0.1});
  DF_ASSERT_OK(Run({.replace = true}));
  ThreadPool pool(1);
  for (const std::string name : {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}) {
    for (const std::string& where : {FineTune(), Base()}) {
      const std::string path = where + "/" + name;
      DF_ASSERT_OK(WriteFileAtomically(path, "{}"));
      std::filesystem::resize_file(path, uintmax_t{1} << 40);
      if (where == FineTune()) {
        const auto report = Run({.replace = true});
        EXPECT_EQ(report.status().code(), StatusCode::kResourceExhausted) << path;
        EXPECT_NE(report.status().message().find(path), std::string::npos) << report.status().message();
      } else {
        EXPECT_EQ(Materialize(pool, *base_, Delta(), directory_.Sub("full"), {}).status().code(),
                  StatusCode::kResourceExhausted);
      }
      std::filesystem::remove(path);
    }
  }
}

TEST_F(CompressTest, WritesAModelCardThatNamesBaseAndRecipe) {
  Write({}, {.change = 0.1});
  DF_ASSERT_OK(Run());
  const std::string card = FileContent(Delta() + "/README.md");
  EXPECT_TRUE(card.starts_with("---\nbase_model: \"base\"\nbase_model_relation: adapter\n")) << card;
  EXPECT_NE(card.find("matrices rank1; embeddings exact; head exact"), std::string::npos);
}

TEST_F(CompressTest, RefusesNaNInAnyTensorNamingItAndLeavesNothing) {
  for (const std::string& name :
       {std::string(kEmbeddingName), std::string("model.layers.1.mlp.down_proj.weight"), std::string(kFinalNormName)}) {
    Write({}, {.change = 0.1}, [&](const std::string& tensor, std::vector<float>& values) {
      if (tensor == name) values[2] = std::numeric_limits<float>::quiet_NaN();
    });
    const auto report = Run();
    ASSERT_FALSE(report.ok()) << name;
    EXPECT_NE(report.status().message().find(name), std::string::npos) << report.status().message();
    EXPECT_NE(report.status().message().find("NaN"), std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(Delta()));
  }
}

TEST_F(CompressTest, RefusesAnotherModelNamingTheDifference) {
  Write({}, {.d_ff = 32});
  EXPECT_EQ(Run().status().code(), StatusCode::kUnsupported);
  Write({}, {.n_layers = 1});
  EXPECT_EQ(Run().status().code(), StatusCode::kUnsupported);
}

TEST_F(CompressTest, RefusesAnExistingDirectoryUnlessToldToReplaceIt) {
  Write({}, {.change = 0.1});
  std::filesystem::create_directories(Delta());
  EXPECT_EQ(Run().status().code(), StatusCode::kFailedPrecondition);
  DF_EXPECT_OK(Run({.replace = true}));
}

// The entries of the directory in which the delta was to appear.
std::set<std::string> Entries(const std::string& directory) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) names.insert(entry.path().filename());
  return names;
}

TEST_F(CompressTest, LeavesNothingBehindWhenTheDiskIsFull) {
  Write({}, {.change = 0.1});
  // A limit on the size of files fails a write as a full disk does, once SIGXFSZ is ignored.
  const auto previous = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  for (const rlim_t limit : {rlim_t{0}, rlim_t{100}, rlim_t{2000}}) {
    const rlimit small = {limit, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
    const Status status = Run().status();
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_EQ(status.code(), StatusCode::kIo) << status.message();
    EXPECT_EQ(Entries(directory_.path()), (std::set<std::string>{"base", "fine-tune"}));
  }
  std::signal(SIGXFSZ, previous);
}

// The largest RssAnon while it lives, looked at every half millisecond.
class MemoryPeak {
 public:
  MemoryPeak()
      : thread_([this] {
          while (!done_.load()) {
            peak_ = std::max(peak_, testing::StatusBytes("RssAnon"));
            std::this_thread::sleep_for(std::chrono::microseconds(500));
          }
        }) {}
  ~MemoryPeak() { Stop(); }
  uint64_t Stop() {
    done_.store(true);
    if (thread_.joinable()) thread_.join();
    return peak_;
  }

 private:
  std::atomic<bool> done_{false};
  uint64_t peak_ = 0;
  std::thread thread_;
};

TEST_F(CompressTest, NeedsLittleMemoryBesideTheLargestTensor) {
  if (testing::kSanitized) GTEST_SKIP() << "the sanitizer's own memory is not ours";
  // The embedding has 32 MB, every other tensor far less.
  const MadeModel large{.d_model = 64, .d_ff = 64, .n_layers = 1, .vocab = 250'000};
  MadeModel changed = large;
  changed.change = 0.1;
  Write(large, changed);
  const uint64_t largest_bytes = 250'000 * 64 * 2;
  for (const char* code : {"raw", "rows", "planes2", "int8", "auto"}) {
    const uint64_t before = testing::StatusBytes("RssAnon");
    MemoryPeak peak;
    DF_ASSERT_OK(Run({.embeddings = CodeOf(code), .replace = true}));
    const uint64_t peak_bytes = peak.Stop();
    // The promise is 3 tensors + 100 MB; working by rows we need one copy of the changed rows, or the signs and scales.
    const uint64_t stored_bytes =
        std::string(code) == "rows" || std::string(code) == "auto" ? largest_bytes : largest_bytes / 2;
    EXPECT_LE(peak_bytes - std::min(before, peak_bytes), stored_bytes + 30'000'000);
  }
}

TEST_F(CompressTest, MaterializeSplitsLargeModelsIntoShards) {
  Write({}, {.change = 0.1});
  DF_ASSERT_OK(Run());
  ThreadPool pool(2);
  const MaterializeOptions options{.max_shard_bytes = 2000};
  const MaterializeReport report = ValueOrDie(Materialize(pool, *base_, Delta(), directory_.Sub("full"), options));
  EXPECT_GT(report.n_shards, 3U);
  const auto full = ValueOrDie(Checkpoint::Open(directory_.Sub("full")));
  EXPECT_EQ(full->names(), fine_tune_->names());
  DF_EXPECT_OK(Bind(*full));
  EXPECT_EQ(full->config().dtype, DType::kBf16);
}

TEST_F(CompressTest, MaterializeRefusesAWeightThatOverflowsHalf) {
  Write({}, {.change = 0.1}, [](const std::string& name, std::vector<float>& values) {
    if (name == kFinalNormName) values[1] = 1e6F;
  });
  DF_ASSERT_OK(Run());
  ThreadPool pool(1);
  const Status status = Materialize(pool, *base_, Delta(), directory_.Sub("full"), {.dtype = DType::kF16}).status();
  EXPECT_NE(status.message().find(kFinalNormName), std::string::npos) << status.message();
  EXPECT_FALSE(std::filesystem::exists(directory_.Sub("full")));
}

TEST_F(CompressTest, VerifyRefusesAnotherBaseAndAFlippedBit) {
  Write({}, {.change = 0.1});
  DF_ASSERT_OK(Run());
  ThreadPool pool(1);
  EXPECT_EQ(Verify(pool, *fine_tune_, Delta(), nullptr, {}).status().code(), StatusCode::kFailedPrecondition);
  const std::string path = Delta() + "/delta_model.safetensors";
  std::string content = FileContent(path);
  content.back() = static_cast<char>(content.back() ^ 1);
  DF_ASSERT_OK(WriteFileAtomically(path, content));
  EXPECT_EQ(Verify(pool, *base_, Delta(), nullptr, {}).status().code(), StatusCode::kCorrupt);
}

TEST(Materialize, AddsLowRankFactorsOfAnAdapter) {
  const std::string golden = std::string(DELTAFOLD_SOURCE_DIR) + "/tests/golden/";
  const std::string lora = golden + "lora/llama3-gqa/plain-r4";
  TemporaryDirectory directory;
  const Json info = ValueOrDie(ReadJsonFile(lora + "/adapter_config.json"));
  const double scale = info["lora_alpha"].get<double>() / info["r"].get<double>();
  const auto base = ValueOrDie(Checkpoint::Open(golden + "models/llama3-gqa"));
  const auto adapter = ValueOrDie(SafetensorsFile::Open(lora + "/adapter_model.safetensors"));
  ThreadPool pool(2);
  const auto report = Materialize(pool, *base, lora, directory.Sub("full"), {.dtype = DType::kF32});
  DF_ASSERT_OK(report);
  const auto full = ValueOrDie(Checkpoint::Open(directory.Sub("full")));
  const std::string module = "model.layers.0.self_attn.q_proj";
  const TensorView* a = adapter->FindOrNull("base_model.model." + module + ".lora_A.weight");
  const TensorView* b = adapter->FindOrNull("base_model.model." + module + ".lora_B.weight");
  ASSERT_TRUE(a != nullptr && b != nullptr);
  const std::vector<float> fa = Floats(*a), fb = Floats(*b);
  const std::vector<float> w0 = Floats(base->FindOrNull(module + ".weight")->view);
  const std::vector<float> w = Floats(full->FindOrNull(module + ".weight")->view);
  const size_t rank = a->shape[0], d_in = a->shape[1];
  for (size_t i = 0; i < w.size(); ++i) {
    double sum = 0, magnitude = 0;
    for (size_t k = 0; k < rank; ++k) {
      const double term =
          scale * static_cast<double>(fb[i / d_in * rank + k]) * static_cast<double>(fa[k * d_in + i % d_in]);
      sum += term;
      magnitude += std::fabs(term);
    }
    const double expected = static_cast<double>(w0[i]) + sum;
    const double bound = static_cast<double>(rank + 3) * 0x1p-24 * (magnitude + std::fabs(expected));
    ASSERT_NEAR(static_cast<double>(w[i]), expected, bound) << i;
  }
}

}  // namespace
}  // namespace df
