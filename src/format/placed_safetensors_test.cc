#include "format/placed_safetensors.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "testing/refusal.h"
#include "testing/temporary_directory.h"

namespace df {
namespace {

using testing::ExpectRefusal;
using testing::ReadFile;
using testing::TemporaryDirectory;
using testing::ValueOrDie;
using testing::WriteFile;

const std::vector<TensorSpec> kSpecs = {{"a", DType::kF32, {3, 5}}, {"b", DType::kBf16, {7}}, {"c", DType::kU8, {2}}};
const std::map<std::string, std::string> kMetadata = {{"format", "pt"}};

std::vector<uint8_t> DataOf(size_t place) {
  std::vector<uint8_t> data(*kSpecs[place].shape.TryElements() * DTypeBytes(kSpecs[place].dtype));
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(16 * place + i);
  return data;
}

TEST(PlacedSafetensors, InWhateverOrderItIsTheFileWrittenFrontToBack) {
  const TemporaryDirectory directory;
  auto writer = ValueOrDie(SafetensorsWriter::Create(directory / "front", kSpecs, kMetadata));
  for (size_t place = 0; place < kSpecs.size(); ++place) DF_ASSERT_OK(writer.Write(DataOf(place)));
  DF_ASSERT_OK(writer.Commit());

  const auto file = ValueOrDie(PlacedSafetensors::Open(directory / "placed", kSpecs, kMetadata));
  EXPECT_FALSE(file.was_there());
  std::vector<std::thread> threads;
  for (const size_t place : {2U, 0U, 1U}) {
    threads.emplace_back([&file, place] {
      const std::vector<uint8_t> data = DataOf(place);
      const Bytes bytes(data);
      for (size_t at = data.size(); at-- > 0;) EXPECT_TRUE(file.Write(place, at, bytes.subspan(at, 1)).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  file.StartSync();
  DF_ASSERT_OK(file.Sync());
  EXPECT_EQ(ReadFile(directory / "placed"), ReadFile(directory / "front"));
}

TEST(PlacedSafetensors, IsGoneOnWithByAnotherAndBegunAnewWhereItIsAnother) {
  const TemporaryDirectory directory;
  const std::string path = directory / "file";
  const std::vector<uint8_t> data = DataOf(1);
  {
    const auto file = ValueOrDie(PlacedSafetensors::Open(path, kSpecs, kMetadata));
    DF_ASSERT_OK(file.Write(1, 0, data));
  }
  const std::string written = ReadFile(path);
  EXPECT_TRUE(ValueOrDie(PlacedSafetensors::Open(path, kSpecs, kMetadata)).was_there());
  EXPECT_EQ(ReadFile(path), written);
  for (const std::string& other :
       {written + "x", written.substr(0, written.size() - 1), "x" + written.substr(1), std::string()}) {
    WriteFile(path, other);
    EXPECT_FALSE(ValueOrDie(PlacedSafetensors::Open(path, kSpecs, kMetadata)).was_there());
    const auto file = ValueOrDie(SafetensorsFile::Open(path));
    EXPECT_EQ(file->FindOrNull("b")->bytes[0], 0);
    EXPECT_EQ(ReadFile(path).size(), written.size());
  }
}

TEST(PlacedSafetensors, RefusesWhatNoFileCanHoldAndFoldersThatAreNot) {
  const TemporaryDirectory directory;
  ExpectRefusal(PlacedSafetensors::Open(directory / "file", {kSpecs[0], kSpecs[0]}, {}).status(),
                StatusCode::kInvalidArgument, {"\"a\"", "twice"});
  ExpectRefusal(PlacedSafetensors::Open(directory / "none/file", kSpecs, {}).status(), StatusCode::kIo, {"none/file"});
  EXPECT_FALSE(std::filesystem::exists(directory / "none"));
}

}  // namespace
}  // namespace df
