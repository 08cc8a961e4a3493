// A tiny family on disk for the tests of the store.
#ifndef DELTAFOLD_STORE_STORE_FIXTURE_H_
#define DELTAFOLD_STORE_STORE_FIXTURE_H_

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "store/variant_source.h"
#include "testing/tiny_family.h"

namespace df {

class StoreFixture : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = std::make_unique<testing::TemporaryDirectory>("deltafold-store-test");
    testing::WriteTinyBase(Path("base"), 1);
    testing::WriteTinyBase(Path("other"), 9);
    testing::WriteTinyDelta(Path("delta"), Path("base"), 2);
    testing::WriteTinyDelta(Path("delta2"), Path("base"), 5);
    testing::WriteTinyDelta(Path("foreign"), Path("other"), 3);
    testing::WriteTinyAdapter(Path("adapter"), {.seed = 4});
    context_ = std::make_unique<KernelContext>(1);
    base_ = testing::ValueOrDie(LoadBaseVariant(*context_, "tiny", Path("base")));
  }
  static void TearDownTestSuite() {
    base_ = {};
    context_.reset();
    directory_.reset();
  }

  static std::string Path(const std::string& name) { return *directory_ / name; }
  // A copy of a variant, to be spoilt or moved.
  static std::string CopyOf(const std::string& name, const std::string& copy) {
    std::filesystem::remove_all(Path(copy));
    std::filesystem::copy(Path(name), Path(copy), std::filesystem::copy_options::recursive);
    return Path(copy);
  }
  // In place: whoever has the file mapped sees it.
  static void FlipLastBit(const std::string& path) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    const char byte = static_cast<char>(file.get());
    file.seekp(-1, std::ios::end);
    file.put(static_cast<char>(byte ^ 1));
  }
  static void PutNanInto(const std::string& path, const std::string& tensor) {
    size_t offset = 0;
    {
      const auto file = testing::ValueOrDie(SafetensorsFile::Open(path));
      offset = static_cast<size_t>(file->FindOrNull(tensor)->bytes.data() - file->file().bytes().data());
    }
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(reinterpret_cast<const char*>(&nan), sizeof(nan));
  }

  static inline std::unique_ptr<testing::TemporaryDirectory> directory_;
  static inline std::unique_ptr<KernelContext> context_;
  static inline LoadedBase base_;
};

}  // namespace df

#endif  // DELTAFOLD_STORE_STORE_FIXTURE_H_
