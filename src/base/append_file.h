// A file that grows at its end and, unlike an AtomicFile, stays when its writer dies: what was appended can be read and
// continued by another process.
#ifndef DELTAFOLD_BASE_APPEND_FILE_H_
#define DELTAFOLD_BASE_APPEND_FILE_H_

#include <string>

#include "base/bytes.h"
#include "base/status.h"

namespace df {

// Thread-compatible.
class AppendFile {
 public:
  // A file that is not there yet, with room for `first_byte` bytes before the first that is appended. The only errors
  // here and below are kIo.
  static Result<AppendFile> Create(const std::string& path, uint64_t first_byte = 0);
  // One that is; everything after its first `keep_bytes` is cut off.
  static Result<AppendFile> Reopen(const std::string& path, uint64_t keep_bytes);
  AppendFile(AppendFile&& other) noexcept;
  AppendFile& operator=(AppendFile&&) = delete;
  ~AppendFile();

  Status Append(Bytes bytes);
  // Overwrites bytes before the end.
  Status WriteAt(uint64_t offset_bytes, Bytes bytes);
  // Has the system begin to put on the disk what was appended since the last call, once that is worth a disk's while,
  // and does not wait for it: a later fsync finds less to do.
  void StartWriteback();
  // What was appended is on the disk when this returns ok.
  Status Sync();

  const std::string& path() const { return path_; }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  AppendFile(std::string path, int fd, uint64_t size_bytes)
      : path_(std::move(path)), fd_(fd), size_bytes_(size_bytes), started_bytes_(size_bytes) {}

  std::string path_;
  int fd_ = -1;
  uint64_t size_bytes_ = 0;
  uint64_t started_bytes_ = 0;  // up to here the disk is at it
};

namespace internal {

// All of `bytes` at `offset_bytes` of `fd`, whose file is called `path` in the error (kIo).
Status WriteFully(int fd, uint64_t offset_bytes, Bytes bytes, const std::string& path);

}  // namespace internal
}  // namespace df

#endif  // DELTAFOLD_BASE_APPEND_FILE_H_
