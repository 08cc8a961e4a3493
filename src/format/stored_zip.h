// Zip archives as torch.save writes them: every entry stored, none compressed or encrypted. APPNOTE 6.3, with zip64.
#ifndef DELTAFOLD_FORMAT_STORED_ZIP_H_
#define DELTAFOLD_FORMAT_STORED_ZIP_H_

#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"

namespace df {

inline constexpr size_t kMaxZipEntries = 100'000;

struct ZipEntry {
  std::string name;
  uint32_t crc32 = 0;  // as the directory says; CheckZipEntry compares
  Bytes data;          // a part of the archive
};

// The entries in the order of their data. Names are distinct, data does not overlap, and nothing reaches out of the
// archive. The only errors are kCorrupt and kUnsupported (a compressed or encrypted entry, several disks), naming the
// entry, and kResourceExhausted (too many). Memory is in proportion to the directory that is really there.
Result<std::vector<ZipEntry>> ParseStoredZip(Bytes archive);

// kCorrupt when the data does not have the CRC-32 of the directory.
Status CheckZipEntry(const ZipEntry& entry);

// CRC-32 of zip (polynomial 0xEDB88320, reflected).
uint32_t Crc32(Bytes data);

}  // namespace df

#endif  // DELTAFOLD_FORMAT_STORED_ZIP_H_
