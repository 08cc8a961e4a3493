// A file mapped read-only. Views of it live as long as the MappedFile.
//
// A file that shrinks under its mapping would end the process with SIGBUS. Instead the missing pages read as zeros and
// `Intact()` turns false: whoever copied weights out of the mapping checks it afterwards and fails that load alone.
#ifndef DELTAFOLD_BASE_MAPPED_FILE_H_
#define DELTAFOLD_BASE_MAPPED_FILE_H_

#include <memory>
#include <string>

#include "base/bytes.h"
#include "base/status.h"

namespace df {

// The file that was mapped, whatever its name points to later.
struct FileIdentity {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size_bytes = 0;
  int64_t modified_ns = 0;  // since 1970
};

// Thread-safe after Open.
class MappedFile {
 public:
  // Maps the whole of `path`. Only regular files: a FIFO, device or directory is refused without blocking.
  // The only errors are kNotFound, kCorrupt (a link to nothing), kFailedPrecondition (not a regular file), kIo,
  // kInvalidArgument (a NUL in the name) and kUnavailable (too many mapped files).
  static Result<std::unique_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  Bytes bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }
  const FileIdentity& identity() const { return identity_; }

  // False once a page could not be read since the file was truncated or the disk failed.
  bool Intact() const;
  // kCorrupt naming the file when it is no longer intact.
  Status CheckIntact() const;

  // Asks for read-ahead of / gives back the resident pages of `part` (a view into bytes()). Dropped pages are
  // read again from disk on the next touch.
  void WillNeed(Bytes part) const;
  void DropPages(Bytes part) const;

 private:
  MappedFile(std::string path, const FileIdentity& identity, const uint8_t* data, size_t size, int slot)
      : path_(std::move(path)), identity_(identity), data_(data), size_(size), slot_(slot) {}

  std::string path_;
  FileIdentity identity_;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  int slot_ = -1;  // entry in the table that the SIGBUS handler reads; -1 when the table was full
};

}  // namespace df

#endif  // DELTAFOLD_BASE_MAPPED_FILE_H_
