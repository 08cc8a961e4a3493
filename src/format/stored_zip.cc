#include "format/stored_zip.h"

#include <algorithm>
#include <array>
#include <set>

#include "format/message.h"

namespace df {
namespace {

constexpr uint32_t kEndMark = 0x06054B50, kEnd64Mark = 0x06064B50, kLocator64Mark = 0x07064B50;
constexpr uint32_t kEntryMark = 0x02014B50, kLocalMark = 0x04034B50;
constexpr size_t kEndBytes = 22, kEnd64Bytes = 56, kLocator64Bytes = 20, kLocalBytes = 30;
constexpr size_t kMaxCommentBytes = 65535;
constexpr uint16_t kZip64Extra = 1;
constexpr uint64_t kIn64 = 0xFFFFFFFF;  // the value stands in the zip64 part

// Little-endian fields one after another. What is not there reads as 0 and leaves `ok` false.
class Fields {
 public:
  explicit Fields(Bytes bytes) : rest_(bytes) {}
  uint64_t Take(size_t n_bytes) {
    uint64_t value = 0;
    if (rest_.size() < n_bytes) {
      ok_ = false;
      return 0;
    }
    for (size_t i = 0; i < n_bytes; ++i) value |= uint64_t{rest_[i]} << (8 * i);
    rest_ = rest_.subspan(n_bytes);
    return value;
  }
  Bytes TakeBytes(size_t n_bytes) {
    if (rest_.size() < n_bytes) {
      ok_ = false;
      return {};
    }
    const Bytes taken = rest_.first(n_bytes);
    rest_ = rest_.subspan(n_bytes);
    return taken;
  }
  void Skip(size_t n_bytes) { (void)TakeBytes(n_bytes); }
  size_t left() const { return rest_.size(); }
  bool ok() const { return ok_; }

 private:
  Bytes rest_;
  bool ok_ = true;
};

struct Directory {
  uint64_t n_entries = 0;
  uint64_t begin_bytes = 0, size_bytes = 0;
};

// Position of the end record: the last whose comment reaches exactly to the end of the archive.
Result<size_t> FindEnd(Bytes archive) {
  const size_t last = archive.size() < kEndBytes ? 0 : archive.size() - kEndBytes;
  for (size_t back = 0; archive.size() >= kEndBytes && back <= std::min(last, kMaxCommentBytes); ++back) {
    Fields fields(archive.subspan(last - back));
    if (fields.Take(4) != kEndMark) continue;
    fields.Skip(16);
    if (fields.Take(2) == back) return last - back;
  }
  return Corrupt("no zip archive: the record that ends one is missing");
}

Result<Directory> ReadEnd64(Bytes archive, size_t end) {
  if (end < kLocator64Bytes) return Corrupt("the zip archive lacks its zip64 part");
  Fields locator(archive.subspan(end - kLocator64Bytes, kLocator64Bytes));
  if (locator.Take(4) != kLocator64Mark) return Corrupt("the zip archive lacks its zip64 part");
  const uint64_t disk = locator.Take(4), at = locator.Take(8), n_disks = locator.Take(4);
  if (disk != 0 || n_disks > 1) return Unsupported("the zip archive is one of several disks");
  if (at > end - kLocator64Bytes || end - kLocator64Bytes - at < kEnd64Bytes) {
    return Corrupt("the zip archive's zip64 part lies outside of it");
  }
  Fields fields(archive.subspan(at, kEnd64Bytes));
  if (fields.Take(4) != kEnd64Mark) return Corrupt("the zip archive's zip64 part is none");
  fields.Skip(8 + 2 + 2);  // its size, versions
  const uint64_t own_disk = fields.Take(4), first_disk = fields.Take(4), here = fields.Take(8);
  Directory directory;
  directory.n_entries = fields.Take(8);
  directory.size_bytes = fields.Take(8);
  directory.begin_bytes = fields.Take(8);
  if (own_disk != 0 || first_disk != 0 || here != directory.n_entries) {
    return Unsupported("the zip archive is one of several disks");
  }
  return directory;
}

Result<Directory> ReadEnd(Bytes archive) {
  DF_ASSIGN_OR_RETURN(const size_t end, FindEnd(archive));
  Fields fields(archive.subspan(end + 4, kEndBytes - 4));
  const uint64_t disk = fields.Take(2), first_disk = fields.Take(2), here = fields.Take(2);
  Directory directory;
  directory.n_entries = fields.Take(2);
  directory.size_bytes = fields.Take(4);
  directory.begin_bytes = fields.Take(4);
  const bool has_64 = end >= kLocator64Bytes &&
                      Fields(archive.subspan(end - kLocator64Bytes, kLocator64Bytes)).Take(4) == kLocator64Mark;
  if (has_64) {
    DF_ASSIGN_OR_RETURN(directory, ReadEnd64(archive, end));
  } else if (disk != 0 || first_disk != 0 || here != directory.n_entries) {
    return Unsupported("the zip archive is one of several disks");
  }
  if (directory.begin_bytes > end || directory.size_bytes > end - directory.begin_bytes) {
    return Corrupt("the zip archive's directory lies outside of it");
  }
  if (directory.n_entries > kMaxZipEntries) {
    return ResourceExhausted("the zip archive has " + std::to_string(directory.n_entries) + " entries, at most " +
                             std::to_string(kMaxZipEntries) + " are read");
  }
  return directory;
}

// What the directory says of an entry.
struct Listed {
  std::string name;
  uint64_t flags = 0, method = 0, crc32 = 0, packed_bytes = 0, size_bytes = 0, at = 0;
};

// Values that did not fit into 32 bits, in this order, each only if its own field says so.
Status ReadExtra64(Bytes extra, Listed& listed) {
  if (listed.size_bytes != kIn64 && listed.packed_bytes != kIn64 && listed.at != kIn64) return Status::Ok();
  Fields fields(extra);
  while (fields.left() >= 4) {
    const uint64_t kind = fields.Take(2), size = fields.Take(2);
    Fields values(fields.TakeBytes(size));
    if (kind != kZip64Extra) continue;
    for (uint64_t* value : {&listed.size_bytes, &listed.packed_bytes, &listed.at}) {
      if (*value == kIn64) *value = values.Take(8);
    }
    if (fields.ok() && values.ok()) return Status::Ok();
  }
  return Corrupt("entry " + Quoted(listed.name) + " of the zip archive lacks its zip64 sizes");
}

Result<Listed> TakeListed(Fields& fields) {
  Listed listed;
  if (fields.Take(4) != kEntryMark) return Corrupt("the zip archive's directory has fewer entries than it says");
  fields.Skip(4);  // versions
  listed.flags = fields.Take(2);
  listed.method = fields.Take(2);
  fields.Skip(4);  // time and date
  listed.crc32 = fields.Take(4);
  listed.packed_bytes = fields.Take(4);
  listed.size_bytes = fields.Take(4);
  const uint64_t name_bytes = fields.Take(2), extra_bytes = fields.Take(2), comment_bytes = fields.Take(2);
  const uint64_t disk = fields.Take(2);
  fields.Skip(2 + 4);  // attributes
  listed.at = fields.Take(4);
  listed.name = AsText(fields.TakeBytes(name_bytes));
  const Bytes extra = fields.TakeBytes(extra_bytes);
  fields.Skip(comment_bytes);
  if (!fields.ok()) return Corrupt("the zip archive's directory is cut short");
  if (disk != 0) return Unsupported("entry " + Quoted(listed.name) + " lies on another disk of the zip archive");
  DF_RETURN_IF_ERROR(ReadExtra64(extra, listed));
  constexpr uint64_t kEncrypted = 1 | 1 << 6 | 1 << 13;
  if ((listed.flags & kEncrypted) != 0) return Unsupported("entry " + Quoted(listed.name) + " is encrypted");
  if (listed.method != 0 || listed.packed_bytes != listed.size_bytes) {
    return Unsupported("entry " + Quoted(listed.name) + " is compressed (method " + std::to_string(listed.method) +
                       "); torch.save stores entries as they are");
  }
  return listed;
}

// `data` ends where the directory begins.
Result<ZipEntry> OpenEntry(Bytes data, const Listed& listed) {
  const auto outside = [&] { return Corrupt("entry " + Quoted(listed.name) + " lies outside of the zip archive"); };
  if (listed.at > data.size() || data.size() - listed.at < kLocalBytes) return outside();
  Fields local(data.subspan(listed.at));
  if (local.Take(4) != kLocalMark) return Corrupt("entry " + Quoted(listed.name) + " does not begin as one");
  local.Skip(22);  // what the directory says as well
  const uint64_t name_bytes = local.Take(2), extra_bytes = local.Take(2);
  const Bytes name = local.TakeBytes(name_bytes);
  local.Skip(extra_bytes);
  const Bytes content = local.TakeBytes(listed.size_bytes);
  if (!local.ok()) return outside();
  if (AsText(name) != listed.name) {
    return Corrupt("entry " + Quoted(listed.name) + " is called " + Quoted(std::string(AsText(name))) +
                   " where its data stands");
  }
  return ZipEntry{listed.name, static_cast<uint32_t>(listed.crc32), content};
}

// Eight tables: table k has the remainders of a byte followed by k zero bytes.
using CrcTables = std::array<std::array<uint32_t, 256>, 8>;
constexpr CrcTables MakeCrcTables() {
  CrcTables tables = {};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0xEDB88320U : 0U);
    tables[0][i] = value;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t i = 0; i < 256; ++i) {
      tables[k][i] = (tables[k - 1][i] >> 8) ^ tables[0][tables[k - 1][i] & 255];
    }
  }
  return tables;
}
constexpr CrcTables kCrc = MakeCrcTables();

}  // namespace

uint32_t Crc32(Bytes data) {
  uint32_t crc = 0xFFFFFFFF;
  size_t i = 0;
  for (; i + 8 <= data.size(); i += 8) {
    const uint64_t word = LoadUnaligned<uint64_t>(data.data() + i) ^ crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kCrc[7 - k][(word >> (8 * k)) & 255];
  }
  for (; i < data.size(); ++i) crc = (crc >> 8) ^ kCrc[0][(crc ^ data[i]) & 255];
  return crc ^ 0xFFFFFFFF;
}

Result<std::vector<ZipEntry>> ParseStoredZip(Bytes archive) {
  DF_ASSIGN_OR_RETURN(const Directory directory, ReadEnd(archive));
  Fields fields(archive.subspan(directory.begin_bytes, directory.size_bytes));
  std::vector<ZipEntry> entries;
  std::set<std::string> names;
  for (uint64_t i = 0; i < directory.n_entries; ++i) {
    DF_ASSIGN_OR_RETURN(const Listed listed, TakeListed(fields));
    if (!names.insert(listed.name).second) return Corrupt("the zip archive has two entries " + Quoted(listed.name));
    DF_ASSIGN_OR_RETURN(entries.emplace_back(), OpenEntry(archive.first(directory.begin_bytes), listed));
  }
  if (fields.left() != 0) return Corrupt("the zip archive's directory has more entries than it says");
  std::ranges::sort(entries, {}, [](const ZipEntry& entry) { return entry.data.data(); });
  for (size_t i = 1; i < entries.size(); ++i) {
    if (entries[i - 1].data.data() + entries[i - 1].data.size() > entries[i].data.data()) {
      return Corrupt("entries " + Quoted(entries[i - 1].name) + " and " + Quoted(entries[i].name) +
                     " of the zip archive overlap");
    }
  }
  return entries;
}

Status CheckZipEntry(const ZipEntry& entry) {
  const uint32_t found = Crc32(entry.data);
  if (found == entry.crc32) return Status::Ok();
  return Corrupt("entry " + Quoted(entry.name) + " has not the CRC-32 that the zip archive says: it is damaged");
}

}  // namespace df
