// Files that appear whole or not at all: written under a temporary name beside the target, fsynced, renamed. What a
// killed process left behind under such a name is removed by the next that writes the same target, or continued by it.
#ifndef DELTAFOLD_BASE_ATOMIC_FILE_H_
#define DELTAFOLD_BASE_ATOMIC_FILE_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"

namespace df {

// Sequential writer. Destroyed without Commit: the temporary file is removed. Thread-compatible.
class AtomicFile {
 public:
  // Replaces regular files only: kFailedPrecondition where `path` is a directory, a device or the like; kIo.
  static Result<AtomicFile> Create(const std::string& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) noexcept;
  ~AtomicFile();

  // The only errors are kIo (disk full, read-only, ...).
  Status Write(Bytes bytes);
  // Overwrites bytes already written (a header that is known only at the end).
  Status WriteAt(uint64_t offset_bytes, Bytes bytes);
  // Flushes, fsyncs, renames over the target, fsyncs the directory.
  Status Commit();

  // Commit in steps, for who goes on writing the file. A failed Rename leaves the target as it was. After it the name
  // stands for what `fd` has open, with whatever lock and mode were set there; durable once SyncDirectoryOf says ok.
  int fd() const { return fd_; }
  Status Rename();  // fsyncs first
  int Release();    // after Rename: the descriptor, the caller's from now on

  uint64_t written_bytes() const { return written_bytes_; }

 private:
  AtomicFile(std::string path, std::string temporary, int fd)
      : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {}
  void Abandon();

  std::string path_;
  std::string temporary_;
  int fd_ = -1;
  uint64_t written_bytes_ = 0;
};

Status WriteFileAtomically(const std::string& path, std::string_view content);

// Makes what was renamed to `path` durable under that name. kIo.
Status SyncDirectoryOf(const std::string& path);

// A directory that appears whole or not at all. Files are written into path(), durably or not; Commit makes them so and
// renames it to the target.
// Destroyed without Commit: removed, unless it is to be kept. An existing target is replaced only when `replace` is set
// and it is a directory that is empty or holds `mark`, and neither is nor contains one of `inputs`: a mistyped name
// must not cost anybody's data.
class AtomicDirectory {
 public:
  struct Options {
    bool replace = false;
    std::string mark = {};                 // name of a file; empty: any directory will do
    std::vector<std::string> inputs = {};  // directories that are being read
    // Name of the file by which another process can continue the work; empty: none can.
    std::string journal = {};
  };
  // kFailedPrecondition: the target exists and may not be replaced; or, with a journal, another process is writing it,
  // or what a stopped one left may not be replaced; kIo.
  static Result<AtomicDirectory> Create(const std::string& target, Options options);
  // What a stopped writer of `target` left behind with a journal in it, or nothing. It is to be kept. Errors as above.
  static Result<std::optional<AtomicDirectory>> TakeOver(const std::string& target, Options options);
  AtomicDirectory(AtomicDirectory&& other) noexcept;
  AtomicDirectory& operator=(AtomicDirectory&&) = delete;
  ~AtomicDirectory();

  const std::string& path() const { return temporary_; }
  // Whether it stays for TakeOver when it is destroyed without Commit.
  void Keep(bool is_kept) { is_kept_ = is_kept; }
  // A file in it, in an existing folder of it where `name` has one; durable with Commit. kIo.
  Status WriteFile(const std::string& name, std::string_view content) const;
  // Puts all that is in it on the disk, then renames. kFailedPrecondition when another has made the target since; kIo.
  Status Commit();

 private:
  AtomicDirectory(std::string target, std::string temporary, int lock_fd, Options options)
      : target_(std::move(target)), temporary_(std::move(temporary)), lock_fd_(lock_fd), options_(std::move(options)) {}

  std::string target_;
  std::string temporary_;
  int lock_fd_ = -1;  // says that this directory has a living writer
  Options options_;
  bool is_kept_ = false;
};

// Reads a whole regular file of at most `max_bytes`. The only errors are kNotFound, kCorrupt (a link to nothing),
// kFailedPrecondition (not a regular file), kResourceExhausted (larger) and kIo.
Result<std::string> ReadFileBounded(const std::string& path, size_t max_bytes);

}  // namespace df

#endif  // DELTAFOLD_BASE_ATOMIC_FILE_H_
