#include "merge/adapter_merge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <numeric>

#include "base/atomic_file.h"
#include "base/json.h"
#include "merge/adapter_fixture.h"
#include "merge/adapter_similarity.h"
#include "merge/adapter_sketch.h"
#include "testing/refusal.h"
#include "testing/temporary_directory.h"

namespace df {
namespace {

using testing::Dense;
using testing::DistanceOf;
using testing::ExpectRefusal;
using testing::kDown;
using testing::kQuery;
using testing::MakeFactors;
using testing::ValueOrDie;

std::string Golden(const std::string& name) {
  return std::string(DELTAFOLD_SOURCE_DIR) + "/tests/golden/merge/" + name;
}

std::vector<AdapterFactors> GoldenAdapters() {
  std::vector<AdapterFactors> adapters;
  for (size_t i = 0; i < 6; ++i) adapters.push_back(testing::ReadMade(Golden("adapters/a" + std::to_string(i))));
  return adapters;
}

// Running mean of `adapters` in the given order, at `rank`.
AdapterFactors RunningMean(const std::vector<const AdapterFactors*>& adapters, size_t rank) {
  ThreadPool pool(2);
  AdapterFactors slot = std::move(ValueOrDie(MeanOfAdapters(pool, {adapters[0]}, 0)).merged);
  for (size_t i = 1; i < adapters.size(); ++i) {
    slot = std::move(ValueOrDie(MergeAdapter(pool, slot, {.n_merged = i}, *adapters[i], {.rank = rank})).merged);
  }
  return slot;
}

TEST(AdapterMerge, TheMeanCutToItsRankIsTheReferencesAndSoIsTheEnergyThatIsCut) {
  const std::vector<AdapterFactors> adapters = GoldenAdapters();
  const Json reference = ValueOrDie(ReadJsonFile(Golden("lora/kmerge.json")));
  ThreadPool pool(2);
  for (const Json& entry : reference["merges"]) {
    std::vector<const AdapterFactors*> members;
    std::string name;
    for (const Json& member : entry["members"]) {
      members.push_back(&adapters[member.get<size_t>()]);
      name += std::to_string(member.get<size_t>());
    }
    const auto file = ValueOrDie(SafetensorsFile::Open(Golden("lora/kmerge_" + name + ".safetensors")));
    const size_t rank = entry["rank"].get<size_t>();
    const AdapterMerge merge = ValueOrDie(MeanOfAdapters(pool, members, rank));
    EXPECT_NEAR(merge.discarded_energy / merge.energy, entry["discarded_energy_total"].get<double>(), 1e-6);
    ASSERT_EQ(merge.merged.modules.size(), 8U);
    for (const auto& [path, pair] : merge.merged.modules) {
      const Mat<double> dense = Dense(pair);
      const TensorView& expected = *file->FindOrNull(path + ".merged");
      double error = 0, norm = 0;
      for (size_t i = 0; i < expected.elements(); ++i) {
        const double value = FloatAt(expected, i);
        error += (dense.view().data[i] - value) * (dense.view().data[i] - value);
        norm += value * value;
      }
      EXPECT_LE(std::sqrt(error), 1e-6 * std::sqrt(norm)) << path;
    }
  }
}

TEST(AdapterMerge, TwoAtOnceAreTheRunningMeanOfTwo) {
  const std::vector<AdapterFactors> adapters = GoldenAdapters();
  ThreadPool pool(2);
  const AdapterMerge at_once = ValueOrDie(MeanOfAdapters(pool, {&adapters[0], &adapters[1]}, 4));
  const AdapterMerge running = ValueOrDie(MergeAdapter(pool, adapters[0], {}, adapters[1], {}));
  EXPECT_NEAR(running.discarded_energy, at_once.discarded_energy, 1e-6 * at_once.energy);
  EXPECT_LE(DistanceOf({&running.merged, &at_once.merged}, {1, -1}), 1e-6 * std::sqrt(at_once.energy));
}

TEST(AdapterMerge, TheRunningMeanIsTheExactMeanInAnyOrderWhileNothingIsCut) {
  std::vector<AdapterFactors> adapters;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    adapters.push_back(MakeFactors({{.path = kQuery}, {.path = kDown, .d_out = 17, .d_in = 31, .rank = 2}}, seed));
  }
  adapters[2].modules.erase(kDown);  // it counts as zero there
  std::vector<const AdapterFactors*> order;
  for (const AdapterFactors& adapter : adapters) order.push_back(&adapter);
  const std::vector<const AdapterFactors*> all = order;
  do {
    const AdapterFactors mean = RunningMean(order, 12);
    const double error = DistanceOf({&mean, all[0], all[1], all[2], all[3]}, {1, -0.25, -0.25, -0.25, -0.25});
    EXPECT_LE(error, 2e-6 * std::sqrt(mean.SquaredNorm()));
  } while (std::ranges::next_permutation(order).found);
}

TEST(AdapterMerge, WithACutTheMeanIsWithinWhatIsToldOfItAndTwiceThatFromTheBestOfItsRank) {
  ThreadPool pool(2);
  std::vector<AdapterFactors> adapters;
  for (uint64_t seed = 0; seed < 5; ++seed) adapters.push_back(MakeFactors({{}, {.path = kDown}}, seed, 0.4F));
  AdapterFactors slot = std::move(ValueOrDie(MeanOfAdapters(pool, {&adapters[0]}, 0)).merged);
  std::vector<const AdapterFactors*> members = {&adapters[0]};
  double at_most = 0;
  for (size_t i = 1; i < adapters.size(); ++i) {
    AdapterMerge merge = ValueOrDie(MergeAdapter(pool, slot, {.n_merged = i}, adapters[i], {.dtype = DType::kBf16}));
    const double n = static_cast<double>(i + 1);
    at_most = at_most * (1 - 1 / n) + merge.lost;
    slot = std::move(merge.merged);
    members.push_back(&adapters[i]);
    std::vector<const AdapterFactors*> terms = members;
    std::vector<double> weights(members.size(), -1 / n);
    terms.push_back(&slot);
    weights.push_back(1);
    const double distance = DistanceOf(terms, weights);
    EXPECT_LE(distance, at_most);
    const AdapterMerge best = ValueOrDie(MeanOfAdapters(pool, members, 0));
    EXPECT_GE(distance * distance, best.discarded_energy * 0.999);
    EXPECT_LE(DistanceOf({&slot, &best.merged}, {1, -1}), 2 * at_most);
  }
}

TEST(AdapterMerge, DistancesToWhatWentInAreTrueWithinRounding) {
  ThreadPool pool(2);
  const AdapterFactors slot = MakeFactors({{}, {.path = kDown, .rank = 5}}, 1);
  const AdapterFactors added = MakeFactors({{.rank = 4}}, 2, 0.5F);
  for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF16}) {
    for (const AdapterRule rule : {AdapterRule::kMean, AdapterRule::kOpcm}) {
      const SlotHistory history = {.n_merged = 1, .sum_of_norms = std::sqrt(slot.SquaredNorm())};
      const AdapterMerge merge = ValueOrDie(MergeAdapter(pool, slot, history, added, {.rule = rule, .dtype = dtype}));
      const double slack = dtype == DType::kF32 ? 1e-4 : 0.05;
      const double moved = DistanceOf({&merge.merged, &slot}, {1, -1});
      const double error = DistanceOf({&merge.merged, &added}, {1, -1});
      EXPECT_LE(moved, merge.moved);
      EXPECT_GE(moved, merge.moved * (1 - slack));
      EXPECT_LE(error, merge.added_error);
      EXPECT_GE(error, merge.added_error * (1 - slack));
    }
  }
}

TEST(AdapterMerge, OpcmKeepsTheMeanNormAndAddsWhatIsOrthogonalToTheSlot) {
  ThreadPool pool(2);
  const std::vector<testing::MadeModule> modules = {{.rank = 4}, {.path = kDown, .rank = 4}};
  AdapterFactors slot = MakeFactors(modules, 0, 0.5F);
  SlotHistory history = {.n_merged = 1, .sum_of_norms = std::sqrt(slot.SquaredNorm())};
  for (uint64_t seed = 1; seed < 4; ++seed) {
    const AdapterFactors added = MakeFactors(modules, seed, 0.5F);
    // At a rank that holds everything, so that nothing but the rule counts.
    const AdapterMerge merge =
        ValueOrDie(MergeAdapter(pool, slot, history, added, {.rank = 24, .rule = AdapterRule::kOpcm}));
    EXPECT_NEAR(merge.discarded_energy, 0, 1e-9 * merge.energy);
    history.sum_of_norms += std::sqrt(added.SquaredNorm());
    const double mean = history.sum_of_norms / static_cast<double>(++history.n_merged);
    EXPECT_NEAR(std::sqrt(merge.merged.SquaredNorm()), mean, 1e-5 * mean);
    // T - l M is what was added: its inner product with M is 0 in every module.
    for (const auto& [path, pair] : merge.merged.modules) {
      const FactorPair& former = slot.modules.at(path);
      const double inner = merge.opcm_scale * InnerProduct(pair, former) - history.opcm_scale * former.squared_norm;
      EXPECT_NEAR(inner, 0, 1e-4 * former.squared_norm);
    }
    history.opcm_scale = merge.opcm_scale;
    slot = std::move(ValueOrDie(MeanOfAdapters(pool, {&merge.merged}, 24)).merged);
  }
}

TEST(AdapterMerge, RanksModulesAndScalesMayDiffer) {
  ThreadPool pool(2);
  const AdapterFactors first = MakeFactors({{.rank = 2}, {.path = kDown, .rank = 6}}, 1);
  const AdapterFactors second = MakeFactors({{.rank = 5}, {.path = "model.layers.1.mlp.up_proj", .rank = 1}}, 2);
  const AdapterMerge merge = ValueOrDie(MergeAdapter(pool, first, {}, second, {}));
  ASSERT_EQ(merge.merged.modules.size(), 3U);
  EXPECT_EQ(merge.merged.modules.at(kQuery).rank(), 5U);
  EXPECT_EQ(merge.merged.modules.at(kDown).rank(), 6U);
  EXPECT_EQ(merge.merged.modules.at("model.layers.1.mlp.up_proj").rank(), 1U);
  const testing::TemporaryDirectory directory;
  const AdapterFactors read = testing::ReadMade(testing::WriteMade(merge.merged, directory / "merged"));
  EXPECT_EQ(DistanceOf({&read, &merge.merged}, {1, -1}), 0);
}

TEST(AdapterMerge, WhatCancelsIsZeroAndStillAnAdapter) {
  ThreadPool pool(2);
  const AdapterFactors first = MakeFactors({{}}, 1);
  AdapterFactors second = MakeFactors({{}}, 1);
  for (float& value : std::span(second.modules.at(kQuery).b.Row(0), 24 * 3)) value = -value;
  const AdapterMerge merge = ValueOrDie(MergeAdapter(pool, first, {}, second, {}));
  EXPECT_EQ(merge.merged.SquaredNorm(), 0);
  EXPECT_NEAR(merge.moved, std::sqrt(first.SquaredNorm()), 1e-5 * merge.moved);
  const testing::TemporaryDirectory directory;
  EXPECT_EQ(testing::ReadMade(testing::WriteMade(merge.merged, directory / "zero")).SquaredNorm(), 0);
}

TEST(AdapterMerge, FactorsOfAnyBalanceAreMergedAlike) {
  ThreadPool pool(2);
  const AdapterFactors first = MakeFactors({{}}, 1), second = MakeFactors({{}}, 2);
  AdapterFactors lopsided = MakeFactors({{}}, 2);
  for (float& value : std::span(lopsided.modules.at(kQuery).b.Row(0), 24 * 3)) value *= 0x1p-20F;
  for (float& value : std::span(lopsided.modules.at(kQuery).a.Row(0), 3 * 20)) value *= 0x1p20F;
  const AdapterMerge expected = ValueOrDie(MergeAdapter(pool, first, {}, second, {}));
  const AdapterMerge merge = ValueOrDie(MergeAdapter(pool, first, {}, lopsided, {}));
  EXPECT_LE(DistanceOf({&merge.merged, &expected.merged}, {1, -1}), 1e-5 * std::sqrt(expected.energy));
}

TEST(AdapterMerge, TheResultDoesNotDependOnThreads) {
  const AdapterFactors first = MakeFactors({{}, {.path = kDown}, {.path = "model.layers.2.mlp.up_proj"}}, 1);
  const AdapterFactors second = MakeFactors({{}, {.path = kDown}}, 2);
  ThreadPool one(1), three(3);
  const AdapterMerge a = ValueOrDie(MergeAdapter(one, first, {}, second, {}));
  const AdapterMerge b = ValueOrDie(MergeAdapter(three, first, {}, second, {}));
  EXPECT_EQ(DistanceOf({&a.merged, &b.merged}, {1, -1}), 0);
  EXPECT_EQ(a.moved, b.moved);
  EXPECT_EQ(SketchOf(one, first), SketchOf(three, first));
  EXPECT_EQ(Similarity(one, first, second), Similarity(three, first, second));
}

TEST(AdapterMerge, RefusesAdaptersOfAnotherBase) {
  ThreadPool pool(1);
  ExpectRefusal(MergeAdapter(pool, MakeFactors({{}}, 1), {}, MakeFactors({{.d_in = 21}}, 2), {}),
                StatusCode::kFailedPrecondition, {kQuery, "24 x 20", "24 x 21", "different bases"});
}

TEST(AdapterMerge, RefusesAValueThatTheStoredTypeCannotHold) {
  ThreadPool pool(1);
  AdapterFactors large = MakeFactors({{}}, 1);
  for (float& value : std::span(large.modules.at(kQuery).b.Row(0), 24 * 3)) value *= 1e12F;
  large.modules.at(kQuery).squared_norm = SquaredNormOf(large.modules.at(kQuery));
  ExpectRefusal(MergeAdapter(pool, large, {}, MakeFactors({{}}, 2), {.dtype = DType::kF16}),
                StatusCode::kFailedPrecondition, {kQuery, "too large for F16"});
}

// The baseline that is wrong: with cross terms, the mean of factors of unrelated adapters is far from their mean.
TEST(AdapterMerge, AveragingFactorsIsAnotherMatrixAndWorseThanTheCutMean) {
  ThreadPool pool(2);
  for (const size_t n : {size_t{2}, size_t{4}}) {
    std::vector<AdapterFactors> adapters;
    std::vector<const AdapterFactors*> members;
    for (uint64_t seed = 0; seed < n; ++seed)
      adapters.push_back(MakeFactors({{.d_out = 96, .d_in = 96, .rank = 4}}, seed));
    AdapterFactors factor_wise = MakeFactors({{.d_out = 96, .d_in = 96, .rank = 4}}, 0);
    FactorPair& pair = factor_wise.modules.at(kQuery);
    std::fill_n(pair.a.Row(0), 4 * 96, 0.0F);
    std::fill_n(pair.b.Row(0), 4 * 96, 0.0F);
    for (const AdapterFactors& adapter : adapters) {
      members.push_back(&adapter);
      for (size_t i = 0; i < 4U * 96; ++i) {
        pair.a.view().data[i] += adapter.modules.at(kQuery).a.view().data[i] / static_cast<float>(n);
        pair.b.view().data[i] += adapter.modules.at(kQuery).b.view().data[i] / static_cast<float>(n);
      }
    }
    pair.squared_norm = SquaredNormOf(pair);
    const AdapterMerge mean = ValueOrDie(MeanOfAdapters(pool, members, 4 * n));
    const AdapterMerge cut = ValueOrDie(MeanOfAdapters(pool, members, 4));
    const double of_cut = Similarity(pool, cut.merged, mean.merged);
    const double of_factors = Similarity(pool, factor_wise, mean.merged);
    // Unrelated adapters: cosine 1/sqrt(n) for the average of factors; a rank of 1/n keeps at least that share of
    // energy.
    EXPECT_NEAR(of_factors, 1 / std::sqrt(static_cast<double>(n)), 0.1);
    EXPECT_GE(of_cut, 1 / std::sqrt(static_cast<double>(n)));
    EXPECT_GT(of_cut, of_factors);
  }
}

TEST(AdapterSimilarity, IsTheReferencesMatrixOfCosines) {
  const std::vector<AdapterFactors> adapters = GoldenAdapters();
  const Json reference = ValueOrDie(ReadJsonFile(Golden("lora/kmerge.json")));
  ThreadPool pool(2);
  for (size_t i = 0; i < adapters.size(); ++i) {
    for (size_t j = 0; j < adapters.size(); ++j) {
      const double expected = reference["cosine_mean_over_modules"][i][j].get<double>();
      EXPECT_NEAR(Similarity(pool, adapters[i], adapters[j]), expected, 1e-6);
    }
  }
}

// Against one that has a module more, one less and another rank; with a scale.
TEST(AdapterSimilarity, OfAStoredAdapterHasTheBitsOfTheOneThatIsRead) {
  const testing::TemporaryDirectory directory;
  const AdapterFactors made = MakeFactors({{.rank = 5}, {.path = testing::kDown}}, 1, 0.3F);
  const std::string path = testing::WriteMade(made, directory / "made");
  Json config = ValueOrDie(ReadJsonFile(path + "/adapter_config.json"));
  config["lora_alpha"] = 7;
  DF_ASSERT_OK(WriteFileAtomically(path + "/adapter_config.json", DumpJson(config)));
  const auto adapter = ValueOrDie(PeftAdapter::Open(path));
  const AdapterFactors second = MakeFactors({{.rank = 2}, {.path = "model.layers.0.mlp.up_proj"}}, 2, 0.3F);
  for (const size_t n_threads : {1U, 3U}) {
    ThreadPool pool(n_threads);
    const AdapterFactors read = ValueOrDie(ReadFactors(pool, *adapter));
    const std::vector<StoredFactors> stored = ValueOrDie(ListFactors(*adapter));
    const double expected = Similarity(pool, read, second);
    EXPECT_NE(expected, 0);
    EXPECT_EQ(ValueOrDie(SimilarityOfStored(pool, stored, SquaredNormsOf(read), second)), expected);
  }
}

TEST(AdapterSimilarity, OfAStoredAdapterNamesAModuleThatIsNotFinite) {
  const testing::TemporaryDirectory directory;
  AdapterFactors made = MakeFactors({{}, {.path = testing::kDown}}, 1);
  const std::vector<double> squares = SquaredNormsOf(made);
  made.modules[testing::kDown].a.view().data[3] = NAN;
  const auto adapter = ValueOrDie(PeftAdapter::Open(testing::WriteMade(made, directory / "made")));
  const std::vector<StoredFactors> stored = ValueOrDie(ListFactors(*adapter));
  ThreadPool pool(1);
  testing::ExpectRefusal(SimilarityOfStored(pool, stored, squares, MakeFactors({{}, {.path = testing::kDown}}, 2)),
                         StatusCode::kCorrupt, {testing::kDown, "not finite"});
}

TEST(AdapterSimilarity, CountsAModuleThatOneLacksAsZero) {
  ThreadPool pool(1);
  const AdapterFactors both = MakeFactors({{}, {.path = kDown}}, 1), one = MakeFactors({{}}, 1);
  EXPECT_NEAR(Similarity(pool, both, one), 0.5, 1e-6);
  EXPECT_NEAR(Similarity(pool, both, both), 1, 1e-6);
  EXPECT_EQ(Similarity(pool, {}, {}), 0);
}

TEST(AdapterSketch, TellsInnerProductsOfManyModulesWithinItsDeviation) {
  ThreadPool pool(2);
  std::vector<testing::MadeModule> modules;
  for (size_t i = 0; i < 28; ++i) {
    modules.push_back(
        {.path = "model.layers." + std::to_string(i) + ".mlp.up_proj", .d_out = 96, .d_in = 64, .rank = 8});
  }
  std::vector<AdapterFactors> adapters;
  std::vector<AdapterSketch> sketches;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    adapters.push_back(MakeFactors(modules, seed, 0.1F * static_cast<float>(seed)));
    sketches.push_back(SketchOf(pool, adapters.back()));
  }
  for (size_t i = 0; i < adapters.size(); ++i) {
    for (size_t j = 0; j < adapters.size(); ++j) {
      double inner = 0;
      for (const auto& [path, pair] : adapters[i].modules) inner += InnerProduct(pair, adapters[j].modules.at(path));
      const double norms = std::sqrt(adapters[i].SquaredNorm() * adapters[j].SquaredNorm());
      EXPECT_NEAR(InnerProduct(sketches[i], sketches[j]) / norms, inner / norms, 0.1);  // three deviations
    }
  }
}

TEST(AdapterFactors, FoldTheScaleIntoTheFactors) {
  const AdapterFactors factors = testing::ReadMade(Golden("adapters/a0"));  // alpha 8, r 4
  const auto file = ValueOrDie(SafetensorsFile::Open(Golden("adapters/a0/adapter_model.safetensors")));
  const std::string path = factors.modules.begin()->first;
  const TensorView& b = *file->FindOrNull("base_model.model." + path + ".lora_B.weight");
  EXPECT_EQ(factors.modules.begin()->second.b.Row(0)[1], 2 * FloatAt(b, 1));
  EXPECT_EQ(factors.dtype, DType::kF32);
}

TEST(AdapterFactors, NameWhatCannotBeMerged) {
  ThreadPool pool(1);
  const std::string lora = std::string(DELTAFOLD_SOURCE_DIR) + "/tests/golden/lora/llama3-gqa/";
  const auto expect = [&](const std::string& name, const std::string& reason) {
    const auto adapter = ValueOrDie(PeftAdapter::Open(lora + name));
    ExpectRefusal(ReadFactors(pool, *adapter), StatusCode::kUnsupported, {"cannot be merged", reason});
  };
  expect("dora", "DoRA");
  expect("lora-bias", "lora_bias");
  expect("modules-to-save-lm-head", "a saved weight");
  expect("embedding-lora", "factors of an embedding");
  expect("trainable-tokens", "trainable tokens");
  for (const char* name : {"plain-r4", "rslora-r8", "patterns", "regex-target", "bf16-stored"}) {
    EXPECT_GT(ValueOrDie(ReadFactors(pool, *ValueOrDie(PeftAdapter::Open(lora + name)))).SquaredNorm(), 0) << name;
  }
}

// What the config promises and the file lacks, or the other way round: never merged as if it were not said.
TEST(AdapterFactors, RefuseWhatTheConfigAndTheFileDoNotAgreeOn) {
  ThreadPool pool(1);
  const std::string lora = std::string(DELTAFOLD_SOURCE_DIR) + "/tests/golden/lora/llama3-gqa/";
  const auto expect = [&](const std::string& from, const std::string& changes,
                          std::initializer_list<std::string_view> words) {
    const testing::TemporaryDirectory directory;
    std::filesystem::copy(from, directory / "changed", std::filesystem::copy_options::recursive);
    const std::string config_path = directory / "changed/adapter_config.json";
    Json config = ValueOrDie(ReadJsonFile(config_path));
    config.update(ValueOrDie(ParseJson(changes)));
    std::filesystem::permissions(config_path, std::filesystem::perms::owner_write, std::filesystem::perm_options::add);
    DF_ASSERT_OK(WriteFileAtomically(config_path, DumpJson(config)));
    const auto adapter = ValueOrDie(PeftAdapter::Open(directory / "changed"));
    EXPECT_EQ(WhyNotMerged(*adapter), "");
    ExpectRefusal(ReadFactors(pool, *adapter), StatusCode::kCorrupt, words);
  };
  const std::string plain = lora + "plain-r4";
  expect(plain, R"({"use_dora": true})", {"use_dora", "no lora_magnitude_vector"});
  expect(plain, R"({"lora_bias": true})", {"lora_bias", "no lora_B.bias"});
  expect(plain, R"({"modules_to_save": ["lm_head"]})", {"modules_to_save", "lm_head", "no weight"});
  expect(plain, R"({"trainable_token_indices": [1, 2]})", {"trainable_token_indices", "embed_tokens"});
  expect(lora + "dora", R"({"use_dora": false})", {"use_dora", "a lora_magnitude_vector"});
  expect(lora + "lora-bias", R"({"lora_bias": false})", {"lora_bias", "false"});
}

TEST(AdapterFactors, RefuseWhatIsNotFinite) {
  ThreadPool pool(1);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 3e38F}) {
    const testing::TemporaryDirectory directory;
    AdapterFactors factors = MakeFactors({{}}, 1);
    factors.modules.at(kQuery).a.Row(0)[3] = bad;
    const auto adapter = ValueOrDie(PeftAdapter::Open(testing::WriteMade(factors, directory / "bad")));
    ExpectRefusal(ReadFactors(pool, *adapter), StatusCode::kCorrupt, {kQuery, "not finite"});
  }
}

}  // namespace
}  // namespace df
