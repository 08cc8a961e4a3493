#include "base/read_ahead.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "base/mapped_file.h"
#include "testing/temporary_directory.h"

namespace df {
namespace {

constexpr size_t kFileBytes = size_t{40} << 20;  // more than is read ahead

class ReadAheadTest : public ::testing::Test {
 protected:
  ReadAheadTest() {
    std::string content(kFileBytes, '\0');
    for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7);
    testing::WriteFile(path_, content);
    Result<std::unique_ptr<MappedFile>> file = MappedFile::Open(path_);
    EXPECT_TRUE(file.ok());
    if (file.ok()) file_ = *std::move(file);
  }
  std::vector<Bytes> Parts(const std::vector<size_t>& sizes) const {
    std::vector<Bytes> parts;
    size_t at = 0;
    for (const size_t size : sizes) {
      parts.push_back(file_->bytes().subspan(at, size));
      at += size;
    }
    return parts;
  }

  testing::TemporaryDirectory directory_;
  const std::string path_ = directory_ / "file";
  std::unique_ptr<MappedFile> file_;
};

TEST_F(ReadAheadTest, LetsTheCallerThroughPartsOfEverySize) {
  const std::vector<size_t> sizes = {0, 1, 4095, size_t{5} << 20, 0, size_t{20} << 20, 77, size_t{10} << 20};
  const std::vector<Bytes> parts = Parts(sizes);
  ReadAhead ahead(parts);
  for (const Bytes part : parts) {
    ahead.Next();
    for (size_t i = 0; i < part.size(); i += 1000) {
      const auto at = static_cast<size_t>(&part[i] - file_->bytes().data());
      ASSERT_EQ(part[i], static_cast<uint8_t>(at * 7));
    }
    file_->DropPages(part);
  }
}

TEST_F(ReadAheadTest, NeedsNoThreadForLittle) {
  const std::vector<Bytes> parts = Parts({100, 200});
  ReadAhead ahead(parts);
  ahead.Next();
  ahead.Next();
}

TEST_F(ReadAheadTest, GivesUpWhenTheCallerDoes) {
  const std::vector<Bytes> parts = Parts({size_t{30} << 20, size_t{10} << 20});
  ReadAhead ahead(parts);
  ahead.Next();
}

// The one who reads ahead must not end the process; the caller finds out by the file itself.
TEST_F(ReadAheadTest, SurvivesAFileThatIsCutShort) {
  const std::vector<Bytes> parts = Parts({size_t{10} << 20, size_t{30} << 20});
  std::filesystem::resize_file(path_, 100);
  ReadAhead ahead(parts);
  ahead.Next();
  ahead.Next();
  EXPECT_TRUE(file_->Intact()) << "nobody has touched it";
  EXPECT_EQ(std::accumulate(parts[1].begin(), parts[1].end(), size_t{0}), 0u);
  EXPECT_FALSE(file_->Intact());
}

}  // namespace
}  // namespace df
