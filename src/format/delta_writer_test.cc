// How the writer lays a delta's file out.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "base/rng.h"
#include "format/delta_fixture.h"
#include "format/step_journal.h"

namespace df {
namespace {

using testing::ConfigText;
using testing::kFingerprint;
using testing::ReadFile;
using testing::ValueOrDie;

struct Part {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint8_t> data;
};

Part RawVector(const std::string& name, DType dtype, size_t n) {
  Part part{name, dtype, std::vector<uint8_t>(n * DTypeBytes(dtype))};
  for (size_t i = 0; i < part.data.size(); ++i) part.data[i] = static_cast<uint8_t>(RandomBits(n, i) & 0x3F);
  return part;
}

// 400 kB, so that a kilobyte of blanks may stand before them.
std::vector<Part> Aligned() {
  return {RawVector("model.layers.0.a.weight", DType::kF32, 50'001),
          RawVector("model.layers.0.b.weight", DType::kBf16, 50'002),
          RawVector("model.layers.1.a.weight", DType::kF32, 25'000)};
}

class DeltaWriterTest : public testing::DeltaTest {
 protected:
  DeltaWriter::Options Options(uint64_t header_bytes) const {
    return {.base_fingerprint = kFingerprint,
            .base_name = "org/base",
            .task = {{"what", "a test"}},
            .header_bytes = header_bytes};
  }
  static Status AddStep(DeltaWriter& writer, const Part& part) {
    DF_RETURN_IF_ERROR(writer.Add(part.name, part.dtype, {part.data.size() / DTypeBytes(part.dtype)}, part.data));
    return writer.EndStep({{"name", part.name}});
  }
  // Finishes what `writer` lacks; the file's content.
  std::string Finish(DeltaWriter& writer, const std::vector<Part>& parts) {
    for (size_t i = writer.done_steps().size(); i < parts.size(); ++i) DF_EXPECT_OK(AddStep(writer, parts[i]));
    DF_EXPECT_OK(writer.AddFile("config.json", ConfigText()));
    DF_EXPECT_OK(writer.Commit(Json::object()));
    const auto delta = ValueOrDie(DeltaDirectory::Open(path_));
    DF_EXPECT_OK(delta->VerifyDigest());
    for (const Part& part : parts) {
      const auto found = delta->tensors().find(part.name);
      EXPECT_TRUE(found != delta->tensors().end() && std::ranges::equal(found->second.view.bytes, part.data));
    }
    std::set<std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) files.insert(entry.path().filename());
    EXPECT_EQ(files, (std::set<std::string>{"config.json", "delta_config.json", "delta_model.safetensors"}));
    const std::string content = ReadFile(path_ + "/delta_model.safetensors");
    std::filesystem::remove_all(path_);
    return content;
  }
  std::string Written(const std::vector<Part>& parts, uint64_t header_bytes) {
    return Finish(*ValueOrDie(DeltaWriter::Create(path_, Options(header_bytes))), parts);
  }
  // Bytes before the data.
  static uint64_t PrefixBytes(const std::string& content) {
    return 8 + LoadUnaligned<uint64_t>(reinterpret_cast<const uint8_t*>(content.data()));
  }
};

TEST_F(DeltaWriterTest, WhereThereIsRoomForTheHeaderOnlyBlanksDiffer) {
  const std::string copied = Written(Aligned(), 0);
  const uint64_t header_bytes = PrefixBytes(copied);
  for (const uint64_t room : {header_bytes, header_bytes + 1, header_bytes + 1000}) {
    const std::string in_place = Written(Aligned(), room);
    const uint64_t prefix_bytes = PrefixBytes(in_place);
    EXPECT_EQ(prefix_bytes, (room + 63) / 64 * 64);
    EXPECT_EQ(in_place.substr(prefix_bytes), copied.substr(header_bytes));
    EXPECT_EQ(in_place.find_first_not_of(' ', header_bytes), prefix_bytes);
  }
}

TEST_F(DeltaWriterTest, CopiesWhereTheHeaderHasNoRoomOrFarTooMuch) {
  const std::string copied = Written(Aligned(), 0);
  EXPECT_EQ(Written(Aligned(), 64), copied);
  EXPECT_EQ(Written(Aligned(), 5000), copied);
}

TEST_F(DeltaWriterTest, TheFileIsTheSameInWhateverOrderTensorsCome) {
  std::vector<Part> parts = Aligned();
  const std::string expected = Written(parts, 0);
  std::ranges::reverse(parts);
  EXPECT_EQ(Written(parts, PrefixBytes(expected)), expected);
}

TEST_F(DeltaWriterTest, TensorsAreAlignedInAnyFile) {
  std::vector<Part> parts = Aligned();
  parts.insert(parts.begin() + 1, RawVector("model.layers.0.ab.weight", DType::kBf16, 3));
  for (const uint64_t room : {uint64_t{0}, PrefixBytes(Written(parts, 0))}) {
    DeltaWriter::Options options = Options(room);
    const auto writer = ValueOrDie(DeltaWriter::Create(path_, options));
    for (const Part& part : parts) DF_ASSERT_OK(AddStep(*writer, part));
    DF_ASSERT_OK(writer->AddFile("config.json", ConfigText()));
    DF_ASSERT_OK(writer->Commit(Json::object()));
    const auto delta = ValueOrDie(DeltaDirectory::Open(path_));
    for (const auto& [name, tensor] : delta->tensors()) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.view.bytes.data()) % DTypeBytes(tensor.view.dtype), 0U) << name;
    }
    std::filesystem::remove_all(path_);
  }
}

TEST_F(DeltaWriterTest, ResumedAfterAnyStepTheFileIsTheSame) {
  const std::vector<Part> parts = Aligned();
  const uint64_t room = PrefixBytes(Written(parts, 0)) + 500;
  const std::string expected = Written(parts, room);
  EXPECT_EQ(PrefixBytes(expected), (room + 63) / 64 * 64);
  for (size_t n_done = 1; n_done <= parts.size(); ++n_done) {
    {
      const auto writer = ValueOrDie(DeltaWriter::Create(path_, Options(room)));
      for (size_t i = 0; i < n_done; ++i) DF_ASSERT_OK(AddStep(*writer, parts[i]));
      writer->Keep();
    }
    DeltaWriter::Options options = Options(room);
    options.resume = true;
    const auto writer = ValueOrDie(DeltaWriter::Create(path_, options));
    EXPECT_EQ(writer->done_steps().size(), n_done);
    EXPECT_EQ(Finish(*writer, parts), expected) << n_done;
  }
}

}  // namespace
}  // namespace df
