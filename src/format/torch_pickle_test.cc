#include "format/torch_pickle.h"

#include <gtest/gtest.h>

#include "testing/refusal.h"
#include "testing/status_matchers.h"
#include "testing/torch_archive.h"

namespace df {
namespace {

using testing::ExpectRefusal;
using testing::LittleEndian;
using testing::Pickled;
using testing::PickledDictionary;
using testing::PickledGlobal;
using testing::PickledInt;
using testing::PickledTensor;
using testing::PickledText;
using testing::TorchArchive;
using testing::ValueOrDie;

std::string Floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}
const std::string kSix = Floats({0, 1, 2, 3, 4, 5});

std::vector<float> ValuesOf(const StridedTensor& tensor) {
  std::vector<uint8_t> memory(*tensor.shape.TryElements() * DTypeBytes(tensor.dtype));
  const TensorView view = tensor.View(memory);
  std::vector<float> values(view.elements());
  ReadFloats(view, 0, values);
  return values;
}

Result<std::vector<StridedTensor>> Parse(const std::string& archive) { return ParseTorchFile(AsBytes(archive)); }
Result<std::vector<StridedTensor>> ParseOne(const PickledTensor& tensor) {
  return Parse(TorchArchive(PickledDictionary({{"t", Pickled(tensor)}}), {{"0", kSix}}));
}

TEST(TorchPickle, ReadsTensorsParametersAndSharedStorages) {
  const std::string archive = TorchArchive(
      PickledDictionary(
          {{"matrix", Pickled({.key = "0", .n_elements = 6, .shape = {2, 3}, .strides = {3, 1}})},
           {"turned", Pickled({.key = "0", .n_elements = 6, .shape = {3, 2}, .strides = {1, 3}})},
           {"part",
            Pickled({.key = "0", .n_elements = 6, .offset = 4, .shape = {2}, .strides = {1}, .is_parameter = true})},
           {"one", Pickled({.storage_type = "IntStorage", .key = "1", .n_elements = 1})}}),
      {{"0", kSix}, {"1", LittleEndian(7, 4)}});
  const auto tensors = ValueOrDie(Parse(archive));
  ASSERT_EQ(tensors.size(), 4U);
  EXPECT_EQ(tensors[0].name, "matrix");
  EXPECT_TRUE(tensors[0].IsContiguous());
  EXPECT_EQ(ValuesOf(tensors[0]), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  EXPECT_FALSE(tensors[1].IsContiguous());
  EXPECT_EQ(ValuesOf(tensors[1]), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(ValuesOf(tensors[2]), (std::vector<float>{4, 5}));
  EXPECT_EQ(tensors[3].dtype, DType::kI32);
  EXPECT_EQ(tensors[3].shape.rank(), 0U);
}

TEST(TorchPickle, GathersAnyStridesAsThePlainLoopDoes) {
  std::vector<float> values(40 * 35);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const std::string storage = Floats(values);
  StridedTensor turned{.name = "t", .shape = {35, 40}, .data = AsBytes(storage)};
  turned.strides = {1, 35};
  const std::vector<float> got = ValuesOf(turned);
  for (size_t i = 0; i < 35; ++i) {
    for (size_t j = 0; j < 40; ++j) ASSERT_EQ(got[i * 40 + j], values[i + 35 * j]);
  }
  StridedTensor cube{.name = "c", .shape = {5, 4, 7}, .data = AsBytes(storage)};
  cube.strides = {1, 70, 10};
  const std::vector<float> cells = ValuesOf(cube);
  for (size_t i = 0; i < cells.size(); ++i) {
    ASSERT_EQ(cells[i], values[i / 28 + i / 7 % 4 * 70 + i % 7 * 10]);
  }
}

TEST(TorchPickle, RunsNothingAndNamesWhatItWasAskedFor) {
  const auto with = [](const std::string& value) {
    return Parse(TorchArchive(PickledDictionary({{"t", value}}), {{"0", kSix}}));
  };
  for (const auto& [module, name] :
       std::vector<std::pair<std::string, std::string>>{{"os", "system"},
                                                        {"builtins", "eval"},
                                                        {"__builtin__", "getattr"},
                                                        {"torch", "UntypedStorage"},
                                                        {"torch._utils", "_rebuild_tensor"},
                                                        {"torch.storage", "_load_from_bytes"},
                                                        {"posix", "system\r"}}) {
    ExpectRefusal(with(PickledGlobal(module, name) + "(" + PickledText("id") + "tR"), StatusCode::kUnsupported,
                  {module, "nothing of it was run"});
  }
  // BUILD, INST, OBJ, NEWOBJ, EXT1, STACK_GLOBAL, PERSID, protocol 4's frame
  for (const std::string opcode : {"b", "i", "o", "\x81", "\x82", "\x93", "P", "\x95"}) {
    ExpectRefusal(with("}" + opcode), StatusCode::kUnsupported, {"opcode"});
  }
  ExpectRefusal(with(PickledInt(5)), StatusCode::kUnsupported, {"\"t\"", "no tensor"});
  ExpectRefusal(with(PickledText("f") + ")R"), StatusCode::kUnsupported, {"calls what is no builder"});
  ExpectRefusal(Parse(TorchArchive("\x80\x04}.", {})), StatusCode::kUnsupported, {"protocol 4"});
  ExpectRefusal(Parse(TorchArchive("\x80\x02K\x01.", {})), StatusCode::kCorrupt, {"no dictionary"});
}

TEST(TorchPickle, RefusesTensorsThatReachOutOfTheirStorage) {
  const PickledTensor sound{.key = "0", .n_elements = 6, .shape = {2, 3}, .strides = {3, 1}};
  DF_EXPECT_OK(ParseOne(sound));
  const auto changed = [&](const auto& change) {
    PickledTensor tensor = sound;
    change(tensor);
    return ParseOne(tensor);
  };
  const uint64_t huge = uint64_t{1} << 62;
  ExpectRefusal(changed([](PickledTensor& t) { t.offset = 1; }), StatusCode::kCorrupt, {"reaches out"});
  ExpectRefusal(changed([](PickledTensor& t) { t.offset = 7; }), StatusCode::kCorrupt, {"reaches out"});
  ExpectRefusal(changed([](PickledTensor& t) { t.strides = {4, 1}; }), StatusCode::kCorrupt, {"reaches out"});
  ExpectRefusal(changed([&](PickledTensor& t) { t.strides = {huge, huge}; }), StatusCode::kCorrupt, {"reaches out"});
  ExpectRefusal(changed([&](PickledTensor& t) { t.shape = {huge, huge}; }), StatusCode::kCorrupt, {"reaches out"});
  ExpectRefusal(changed([](PickledTensor& t) { t.shape = {1000, 1000}, t.strides = {0, 0}; }), StatusCode::kCorrupt,
                {"reaches out"});
  ExpectRefusal(changed([](PickledTensor& t) { t.strides = {3}; }), StatusCode::kCorrupt, {"strides"});
  ExpectRefusal(changed([](PickledTensor& t) { t.shape = t.strides = {1, 1, 1, 1, 1, 1, 1, 1, 1}; }),
                StatusCode::kCorrupt, {"dimensions"});
  ExpectRefusal(changed([](PickledTensor& t) { t.n_elements = 7; }), StatusCode::kCorrupt, {"storage", "24 bytes"});
  ExpectRefusal(changed([](PickledTensor& t) { t.key = "9"; }), StatusCode::kCorrupt, {"\"9\"", "not in the archive"});
  ExpectRefusal(changed([](PickledTensor& t) { t.storage_type = "DoubleStorage"; }), StatusCode::kCorrupt, {"F64"});
  EXPECT_EQ(ValueOrDie(changed([](PickledTensor& t) { t.shape = {0, 3}; })).size(), 1U);
}

std::string SoundPickle() {
  return PickledDictionary(
      {{"a", Pickled({.key = "0", .n_elements = 6, .shape = {2, 3}, .strides = {3, 1}})},
       {"b", Pickled({.key = "0", .n_elements = 6, .shape = {6}, .strides = {1}, .is_parameter = true})}});
}

class OneStorage final : public TorchStorages {
 public:
  const Bytes* FindOrNull(std::string_view key) const override { return key == "0" ? &bytes_ : nullptr; }

 private:
  Bytes bytes_ = AsBytes(kSix);
};

TEST(TorchPickle, RefusesEveryTruncation) {
  const std::string pickle = SoundPickle();
  for (size_t size = 0; size < pickle.size(); ++size) {
    const std::vector<uint8_t> exact(pickle.begin(), pickle.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_FALSE(ReadTorchPickle(exact, OneStorage()).ok()) << size;
  }
  DF_EXPECT_OK(ReadTorchPickle(AsBytes(pickle), OneStorage()));
}

TEST(TorchPickle, AnyChangedByteIsRefusedOrGivesTensorsWithinTheirStorage) {
  const std::string pickle = SoundPickle();
  for (size_t at = 0; at < pickle.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::vector<uint8_t> changed(pickle.begin(), pickle.end());
      changed[at] = static_cast<uint8_t>(value);
      const auto tensors = ReadTorchPickle(changed, OneStorage());
      if (!tensors.ok()) continue;
      for (const StridedTensor& tensor : *tensors) {
        if (tensor.dtype == DType::kF32) {
          EXPECT_LE(ValuesOf(tensor).size(), 6U);
        }
      }
    }
  }
}

TEST(TorchPickle, IsBounded) {
  const std::string many = "\x80\x02" + std::string(kMaxPickleValues + 1, 'N') + ".";
  ExpectRefusal(ReadTorchPickle(AsBytes(many), OneStorage()), StatusCode::kResourceExhausted, {"1000000 values"});
  const std::string large(kMaxPickleBytes + 1, 'N');
  ExpectRefusal(ReadTorchPickle(AsBytes(large), OneStorage()), StatusCode::kResourceExhausted, {"bytes"});
}

TEST(TorchPickle, RefusesDamagedStoragesAndOtherArchives) {
  std::string archive = TorchArchive(SoundPickle(), {{"0", kSix}});
  archive[archive.find(kSix) + 7] ^= 1;
  ExpectRefusal(Parse(archive), StatusCode::kCorrupt, {"diff/data/0", "damaged"});
  ExpectRefusal(Parse(testing::MakeZip({{.name = "a/b", .data = "c"}})), StatusCode::kCorrupt, {"data.pkl"});
  ExpectRefusal(Parse(testing::MakeZip({{.name = "a/data.pkl", .data = SoundPickle()},
                                        {.name = "a/byteorder", .data = "big"},
                                        {.name = "a/data/0", .data = kSix}})),
                StatusCode::kUnsupported, {"little-endian"});
  ExpectRefusal(Parse("no archive at all"), StatusCode::kCorrupt, {"zip"});
  const std::string twice =
      PickledDictionary({{"a", Pickled({.key = "0", .n_elements = 6, .shape = {6}, .strides = {1}})},
                         {"a", Pickled({.key = "0", .n_elements = 6, .shape = {6}, .strides = {1}})}});
  ExpectRefusal(ReadTorchPickle(AsBytes(twice), OneStorage()), StatusCode::kCorrupt, {"two entries \"a\""});
}

}  // namespace
}  // namespace df
