#include "format/stored_zip.h"

#include <gtest/gtest.h>

#include "testing/refusal.h"
#include "testing/status_matchers.h"
#include "testing/torch_archive.h"

namespace df {
namespace {

using testing::ExpectRefusal;
using testing::LittleEndian;
using testing::MadeZipEntry;
using testing::MakeZip;
using testing::ValueOrDie;

const std::vector<MadeZipEntry> kEntries = {{.name = "a/data.pkl", .data = "pickle"},
                                            {.name = "a/empty", .data = ""},
                                            {.name = "a/data/0", .data = "0123456789"}};

TEST(StoredZip, Crc32IsThatOfTheStandard) {
  EXPECT_EQ(Crc32(AsBytes("123456789")), 0xCBF43926U);
  EXPECT_EQ(Crc32({}), 0U);
  EXPECT_EQ(Crc32(AsBytes("a longer text than eight bytes, of an odd length")), 0xD646F099U);
}

TEST(StoredZip, ReadsWhatWasStored) {
  for (const bool is_zip64 : {false, true}) {
    std::vector<MadeZipEntry> made = kEntries;
    for (MadeZipEntry& entry : made) entry.is_zip64 = is_zip64;
    const std::string archive = MakeZip(made, is_zip64);
    const auto entries = ValueOrDie(ParseStoredZip(AsBytes(archive)));
    ASSERT_EQ(entries.size(), 3U);
    for (const ZipEntry& entry : entries) DF_EXPECT_OK(CheckZipEntry(entry));
    EXPECT_EQ(AsText(entries[0].data), "pickle");
    EXPECT_EQ(AsText(entries[2].data), "0123456789");
  }
}

TEST(StoredZip, TakesACommentAtTheEnd) {
  std::string archive = MakeZip(kEntries);
  archive.replace(archive.size() - 2, 2, LittleEndian(7, 2));
  EXPECT_EQ(ValueOrDie(ParseStoredZip(AsBytes(archive + "comment"))).size(), 3U);
  ExpectRefusal(ParseStoredZip(AsBytes(archive + "commen")), StatusCode::kCorrupt, {"record that ends one"});
}

TEST(StoredZip, RefusesEveryTruncation) {
  for (const bool is_zip64 : {false, true}) {
    const std::string archive = MakeZip(kEntries, is_zip64);
    for (size_t size = 0; size < archive.size(); ++size) {
      const std::vector<uint8_t> exact(archive.begin(), archive.begin() + static_cast<ptrdiff_t>(size));
      EXPECT_FALSE(ParseStoredZip(exact).ok()) << size;
    }
  }
}

TEST(StoredZip, AnyChangedByteIsRefusedOrHarmless) {
  std::vector<MadeZipEntry> made = kEntries;
  made[2].is_zip64 = true;
  const std::string archive = MakeZip(made, true);
  for (size_t at = 0; at < archive.size(); ++at) {
    for (const int flip : {1, 0x80, 0xFF}) {
      std::vector<uint8_t> changed(archive.begin(), archive.end());
      changed[at] = static_cast<uint8_t>(changed[at] ^ flip);
      const auto entries = ParseStoredZip(changed);
      if (!entries.ok()) continue;
      unsigned sum = 0;
      for (const ZipEntry& entry : *entries) {
        ASSERT_TRUE(entry.data.empty() || (entry.data.data() >= changed.data() &&
                                           entry.data.data() + entry.data.size() <= changed.data() + changed.size()));
        for (const uint8_t byte : entry.data) sum += byte;
      }
      EXPECT_LT(sum, 1U << 20);
    }
  }
}

TEST(StoredZip, NoticesDamagedData) {
  std::string archive = MakeZip(kEntries);
  archive[archive.find("0123456789") + 3] ^= 4;
  const auto entries = ValueOrDie(ParseStoredZip(AsBytes(archive)));
  ExpectRefusal(CheckZipEntry(entries[2]), StatusCode::kCorrupt, {"a/data/0", "damaged"});
}

TEST(StoredZip, RefusesByName) {
  const auto with = [](const MadeZipEntry& entry) { return MakeZip({kEntries[0], entry}); };
  ExpectRefusal(ParseStoredZip(AsBytes(with({.name = "x", .data = "y", .method = 8}))), StatusCode::kUnsupported,
                {"\"x\"", "compressed"});
  ExpectRefusal(ParseStoredZip(AsBytes(with({.name = "x", .data = "y", .flags = 1}))), StatusCode::kUnsupported,
                {"\"x\"", "encrypted"});
  ExpectRefusal(ParseStoredZip(AsBytes(with(kEntries[0]))), StatusCode::kCorrupt, {"two entries", "a/data.pkl"});
  std::string renamed = MakeZip(kEntries);
  renamed.replace(renamed.find("a/data/0"), 8, "b/data/1");
  ExpectRefusal(ParseStoredZip(AsBytes(renamed)), StatusCode::kCorrupt, {"a/data/0", "b/data/1"});
}

}  // namespace
}  // namespace df
