#include "codec/import_bitdelta.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "codec/compressor.h"
#include "codec/materialize.h"
#include "format/delta_dir.h"
#include "testing/made_checkpoint.h"
#include "testing/refusal.h"
#include "testing/torch_archive.h"

namespace df {
namespace {

using testing::ExpectRefusal;
using testing::MadeModel;
using testing::Pickled;
using testing::PickledTensor;
using testing::TemporaryDirectory;
using testing::ValueOrDie;
using testing::WriteModel;

const std::string kGolden = std::string(DELTAFOLD_SOURCE_DIR) + "/tests/golden/deltas/llama3-gqa";

// A fine-tune, its delta by our own code `scalar`, and what BitDelta's save_diff would write of it.
class ImportTest : public ::testing::Test {
 protected:
  void SetUp() override { Write({}); }

  void Write(const MadeModel& changes) {
    MadeModel base{.d_model = 32, .d_ff = 64};
    MadeModel fine_tune = base;
    fine_tune.change = 0.1;
    fine_tune.vocab = changes.vocab;
    WriteModel(base, directory_.Sub("base"));
    WriteModel(fine_tune, directory_.Sub("fine-tune"));
    base_ = ValueOrDie(Checkpoint::Open(directory_.Sub("base")));
    fine_tune_ = ValueOrDie(Checkpoint::Open(directory_.Sub("fine-tune")));
    CompressOptions options;
    options.matrices = ValueOrDie(ParseCode("scalar"));
    options.replace = true;
    DF_EXPECT_OK(Compress(pool_, *base_, *fine_tune_, directory_.Sub("own"), options));
    own_ = ValueOrDie(DeltaDirectory::Open(directory_.Sub("own")));
    entries_.clear();
    storages_.clear();
    for (const Slot& slot : ListSlots(fine_tune_->config(), true)) AddEntries(slot);
  }

  void AddEntries(const Slot& slot) {
    const TensorView& full = fine_tune_->FindOrNull(slot.name)->view;
    if (slot.kind != SlotKind::kMatrix) {
      const std::vector<uint64_t> shape(full.shape.dims().begin(), full.shape.dims().end());
      const std::vector<uint64_t> strides =
          slot.IsVector() ? std::vector<uint64_t>{1} : std::vector<uint64_t>{slot.d_in, 1};
      Add(slot.name, {.storage_type = "BFloat16Storage", .shape = shape, .strides = strides, .is_parameter = true},
          std::string(AsText(full.bytes)));
      return;
    }
    const LinearDelta change = ValueOrDie(own_->Linear(slot.name, {slot.d_out, slot.d_in}, slot.d_out));
    const std::string module = ModuleOf(slot.name);
    AddMask(module, change.planes[0].bits, slot.d_out, slot.d_in / 32);
    const float scale = change.planes[0].scale;
    Add(module + ".coeff", {}, {reinterpret_cast<const char*>(&scale), sizeof(scale)});
  }

  // [words, d_out]; in memory word by word, or, as torch may leave a turned tensor, column by column.
  void AddMask(const std::string& module, Bytes bits, size_t d_out, size_t n_words) {
    std::string storage(bits.size(), '\0');
    for (size_t row = 0; row < d_out; ++row) {
      for (size_t word = 0; word < n_words; ++word) {
        const size_t to = is_turned_ ? row * n_words + word : word * d_out + row;
        std::memcpy(storage.data() + 4 * to, bits.data() + 4 * (row * n_words + word), 4);
      }
    }
    const std::vector<uint64_t> strides =
        is_turned_ ? std::vector<uint64_t>{1, n_words} : std::vector<uint64_t>{d_out, 1};
    Add(module + ".mask", {.storage_type = "IntStorage", .shape = {n_words, d_out}, .strides = strides}, storage);
  }

  void Add(const std::string& name, PickledTensor tensor, const std::string& storage) {
    tensor.key = std::to_string(storages_.size());
    tensor.n_elements = storage.size() / (tensor.storage_type == "BFloat16Storage" ? 2 : 4);
    entries_[name] = tensor;
    storages_.emplace_back(tensor.key, storage);
  }

  Result<ImportReport> Import(const ImportOptions& options = {.replace = true}) {
    std::vector<std::pair<std::string, std::string>> pickled;
    for (const auto& [name, tensor] : entries_) pickled.emplace_back(name, Pickled(tensor));
    const std::string archive = testing::TorchArchive(testing::PickledDictionary(pickled), storages_);
    DF_EXPECT_OK(WriteFileAtomically(directory_.Sub("diff.pt"), archive));
    return ImportBitDelta(pool_, *base_, directory_.Sub("diff.pt"), directory_.Sub("imported"), options);
  }
  std::shared_ptr<const DeltaDirectory> Imported() {
    return ValueOrDie(DeltaDirectory::Open(directory_.Sub("imported")));
  }

  TemporaryDirectory directory_;
  ThreadPool pool_{2};
  std::shared_ptr<const Checkpoint> base_, fine_tune_;
  std::shared_ptr<const DeltaDirectory> own_;
  std::map<std::string, PickledTensor> entries_;
  std::vector<std::pair<std::string, std::string>> storages_;
  bool is_turned_ = false;
};

const std::string kModule = "model.layers.1.mlp.up_proj";

TEST_F(ImportTest, GivesTheVeryDeltaThatOurScalarCodeMakes) {
  for (const bool is_turned : {false, true}) {
    is_turned_ = is_turned;
    Write({});
    const ImportReport report = ValueOrDie(Import());
    EXPECT_EQ(report.n_signs, 14U);
    EXPECT_EQ(report.n_full, 6U);
    EXPECT_EQ(Imported()->metadata().content_digest, own_->metadata().content_digest);
    EXPECT_EQ(Imported()->metadata().base_fingerprint, own_->metadata().base_fingerprint);
    DF_EXPECT_OK(Imported()->VerifyDigest());
    DF_EXPECT_OK(Materialize(pool_, *base_, directory_.Sub("imported"), directory_.Sub("full"), {.replace = true}));
  }
}

TEST_F(ImportTest, TakesTheVocabularyOfTheFile) {
  for (const size_t vocab : {size_t{17}, size_t{29}}) {
    Write({.vocab = vocab});
    DF_ASSERT_OK(Import());
    EXPECT_EQ(Imported()->config().vocab, vocab);
    EXPECT_EQ(Imported()->metadata().content_digest, own_->metadata().content_digest);
    DF_EXPECT_OK(Materialize(pool_, *base_, directory_.Sub("imported"), directory_.Sub("full"), {.replace = true}));
  }
}

TEST_F(ImportTest, TakesConfigAndTextFilesOfTheFineTune) {
  DF_ASSERT_OK(WriteFileAtomically(directory_.Sub("fine-tune") + "/tokenizer.json", "{}"));
  DF_ASSERT_OK(Import({.config_directory = directory_.Sub("fine-tune"), .replace = true}));
  EXPECT_TRUE(std::filesystem::exists(directory_.Sub("imported") + "/tokenizer.json"));
}

TEST_F(ImportTest, RefusesWhatDoesNotBelongByName) {
  const auto refuse = [&](StatusCode code, std::initializer_list<std::string_view> words, const auto& change) {
    Write({});
    change();
    ExpectRefusal(Import(), code, words);
    EXPECT_FALSE(std::filesystem::exists(directory_.Sub("imported")));
  };
  refuse(StatusCode::kCorrupt, {kModule, "no coefficient"}, [&] { entries_.erase(kModule + ".coeff"); });
  refuse(StatusCode::kCorrupt, {kModule, "no mask"}, [&] { entries_.erase(kModule + ".mask"); });
  refuse(StatusCode::kUnsupported, {"\"other\"", "no projection"},
         [&] { entries_["other.mask"] = entries_[kModule + ".mask"]; });
  refuse(StatusCode::kUnsupported, {kModule + ".A"}, [&] { entries_[kModule + ".A"] = entries_[kModule + ".coeff"]; });
  refuse(StatusCode::kCorrupt, {kModule, "[1, 64]", "[2, 32]"}, [&] {
    entries_[kModule + ".mask"].shape = {2, 32};
    entries_[kModule + ".mask"].strides = {32, 1};
  });
  refuse(StatusCode::kCorrupt, {kModule, "one float"},
         [&] { entries_[kModule + ".coeff"] = entries_[kModule + ".mask"]; });
  refuse(StatusCode::kCorrupt, {kModule, "not finite"}, [&] {
    const float bad = std::numeric_limits<float>::infinity();
    Add(kModule + ".coeff", {}, {reinterpret_cast<const char*>(&bad), sizeof(bad)});
  });
  refuse(StatusCode::kCorrupt, {"no masks"},
         [&] { std::erase_if(entries_, [](const auto& entry) { return !entry.first.ends_with("norm.weight"); }); });
  refuse(StatusCode::kCorrupt, {kModule, "both a mask and a full"}, [&] {
    entries_[kModule + ".weight"] = {.storage_type = "BFloat16Storage", .shape = {64, 32}, .strides = {32, 1}};
    Add(kModule + ".weight", entries_[kModule + ".weight"], std::string(64 * 32 * 2, '\0'));
  });
}

// Written by torch itself.
TEST(ImportGolden, ReadsFilesOfTorchAndSafetensorsAlike) {
  TemporaryDirectory directory;
  ThreadPool pool(2);
  const auto base = ValueOrDie(Checkpoint::Open(kGolden + "/base"));
  const auto reference = ValueOrDie(SafetensorsFile::Open(kGolden + "/ft0/reference.safetensors"));
  std::set<std::string> digests;
  for (const char* file : {"diff.pt", "diff_parameters.pt", "diff.safetensors"}) {
    DF_ASSERT_OK(ImportBitDelta(pool, *base, kGolden + "/ft0/" + file, directory.Sub("delta"), {.replace = true}));
    const auto delta = ValueOrDie(DeltaDirectory::Open(directory.Sub("delta")));
    digests.insert(delta->metadata().content_digest);
    size_t n_signs = 0;
    for (const auto& [name, stored] : delta->tensors()) {
      if (!name.ends_with(".sign")) continue;
      ++n_signs;
      const TensorView* bits = reference->FindOrNull(name.substr(0, name.size() - 5) + ".bits");
      ASSERT_NE(bits, nullptr) << name;
      EXPECT_TRUE(std::ranges::equal(stored.view.bytes, bits->bytes)) << name;
    }
    EXPECT_EQ(n_signs, 14U);
    DF_EXPECT_OK(Materialize(pool, *base, directory.Sub("delta"), directory.Sub("full"), {.replace = true}));
  }
  EXPECT_EQ(digests.size(), 1U);
}

}  // namespace
}  // namespace df
