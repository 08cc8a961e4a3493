#include "base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include "base/append_file.h"
#include "base/presence.h"
#include "base/temporary_name.h"

namespace df {
namespace {

namespace fs = std::filesystem;

std::string WithoutTrailingSlash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

bool IsOrContains(const fs::path& directory, const std::string& inner) {
  std::error_code error;
  for (fs::path at = fs::canonical(inner, error); !error; at = at.parent_path()) {
    if (fs::equivalent(directory, at, error)) return true;
    if (at == at.root_path()) break;
  }
  return false;
}

Status CheckReplaceable(const std::string& target, const AtomicDirectory::Options& options) {
  std::error_code error;
  if (!fs::exists(fs::symlink_status(target, error))) return Status::Ok();
  if (!options.replace) {
    return FailedPrecondition(target + " exists already; remove it, choose another name or replace it with --force");
  }
  const std::string refused = target + " is not replaced: ";
  if (!fs::is_directory(target, error)) return FailedPrecondition(refused + "it is no directory");
  for (const std::string& input : options.inputs) {
    if (IsOrContains(target, input)) return FailedPrecondition(refused + "it is needed to make what is to replace it");
  }
  if (options.mark.empty() || fs::exists(target + "/" + options.mark, error) || fs::is_empty(target, error)) {
    return Status::Ok();
  }
  return FailedPrecondition(refused + "it holds other things (no " + options.mark + "); remove it yourself");
}

bool HasJournal(const std::string& temporary, const AtomicDirectory::Options& options) {
  std::error_code ignored;
  return !options.journal.empty() && fs::is_regular_file(temporary + "/" + options.journal, ignored);
}

Status BeingWritten(const std::string& target, const std::string& temporary) {
  return FailedPrecondition(target + " is being written by another process, in " + temporary +
                            "; wait for it or stop it");
}

// Refuses beside a living writer of the same target, and beside what a stopped one left unless it may be replaced.
Status ClearJournals(const std::string& target, const AtomicDirectory::Options& options) {
  if (options.journal.empty()) return Status::Ok();
  for (const std::string& path : internal::ListTemporaries(target)) {
    if (!HasJournal(path, options)) continue;
    if (internal::IsLocked(path)) return BeingWritten(target, path);
    if (!options.replace) {
      return FailedPrecondition(path + " is what a stopped run at " + target +
                                " left: continue it with --resume, or discard it with --force");
    }
    std::error_code error;
    fs::remove_all(path, error);
    if (error) return IoError("cannot remove " + path, error.value());
  }
  return Status::Ok();
}

// Opens every file and folder below `directory`, and itself at last, and calls visit(fd, path).
template <typename Visit>
Status ForEachDescriptor(const std::string& directory, const Visit& visit) {
  const auto open_and_visit = [&](const std::string& path, int flags) -> Status {
    const int fd = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | flags);
    if (fd < 0) return IoError("cannot open " + path, errno);
    const Status status = visit(fd, path);
    close(fd);
    return status;
  };
  std::error_code error;
  for (fs::recursive_directory_iterator entries(directory, error);
       !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    if (entries->is_symlink(error)) continue;
    const bool is_folder = entries->is_directory(error);
    DF_RETURN_IF_ERROR(open_and_visit(entries->path().string(), is_folder ? O_DIRECTORY : 0));
  }
  if (error) return IoError("cannot list " + directory, error.value());
  return open_and_visit(directory, O_DIRECTORY);
}

// The disk begins with all files before any is waited for: one wait, not one a file.
Status SyncTree(const std::string& directory) {
  DF_RETURN_IF_ERROR(ForEachDescriptor(directory, [](int fd, const std::string&) {
    static_cast<void>(sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE));  // a request
    return Status::Ok();
  }));
  return ForEachDescriptor(directory, [](int fd, const std::string& path) {
    // Some file systems cannot fsync a directory (SyncDirectoryOf).
    return fsync(fd) == 0 || errno == EINVAL ? Status::Ok() : IoError("cannot fsync " + path, errno);
  });
}

// Swaps what two names stand for: a process killed at any moment leaves one of the two under `target`.
Status Exchange(const std::string& temporary, const std::string& target) {
  if (renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) return Status::Ok();
  if (errno != EINVAL && errno != ENOSYS) return IoError("cannot exchange " + temporary + " and " + target, errno);
  // A file system that cannot: in between the old one stands under a name that nobody removes.
  const std::string old = target + ".old-" + std::to_string(getpid());
  if (std::rename(target.c_str(), old.c_str()) != 0) return IoError("cannot move " + target + " away", errno);
  if (std::rename(temporary.c_str(), target.c_str()) != 0) {
    const int error = errno;
    std::rename(old.c_str(), target.c_str());
    return IoError("cannot rename " + temporary + " to " + target, error);
  }
  if (std::rename(old.c_str(), temporary.c_str()) != 0) return IoError("cannot remove " + old, errno);
  return Status::Ok();
}

}  // namespace

Result<AtomicFile> AtomicFile::Create(const std::string& path) {
  std::error_code ignored;  // what cannot be looked at cannot be replaced either
  const fs::file_status status = fs::status(path, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    return FailedPrecondition(path + " is there and is no regular file: it is not replaced");
  }
  internal::RemoveAbandoned(path);
  std::string temporary = internal::TemporaryName(path);
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return IoError("cannot create " + temporary, errno);
  (void)internal::LockTemporary(fd);  // new: nobody else can have
  return AtomicFile(path, std::move(temporary), fd);
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept { *this = std::move(other); }

AtomicFile& AtomicFile::operator=(AtomicFile&& other) noexcept {
  if (this == &other) return *this;
  Abandon();
  path_ = std::move(other.path_);
  temporary_ = std::move(other.temporary_);
  fd_ = std::exchange(other.fd_, -1);
  written_bytes_ = other.written_bytes_;
  return *this;
}

AtomicFile::~AtomicFile() { Abandon(); }

void AtomicFile::Abandon() {
  if (fd_ < 0) return;
  close(fd_);
  fd_ = -1;
  unlink(temporary_.c_str());
}

Status AtomicFile::Write(Bytes bytes) {
  DF_RETURN_IF_ERROR(WriteAt(written_bytes_, bytes));
  written_bytes_ += bytes.size();
  return Status::Ok();
}

Status AtomicFile::WriteAt(uint64_t offset_bytes, Bytes bytes) {
  DF_CHECK(fd_ >= 0);
  return internal::WriteFully(fd_, offset_bytes, bytes, temporary_);
}

Status AtomicFile::Rename() {
  DF_CHECK(fd_ >= 0);
  if (fsync(fd_) != 0) return IoError("cannot fsync " + temporary_, errno);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return IoError("cannot rename " + temporary_ + " to " + path_, errno);
  }
  return Status::Ok();
}

int AtomicFile::Release() { return std::exchange(fd_, -1); }

Status AtomicFile::Commit() {
  DF_RETURN_IF_ERROR(Rename());
  close(Release());
  return SyncDirectoryOf(path_);
}

Status SyncDirectoryOf(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  const std::string directory = parent.empty() ? "." : parent.string();
  const int fd = open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return IoError("cannot open directory " + directory, errno);
  const int result = fsync(fd);
  const int error = errno;
  close(fd);
  // Some file systems cannot fsync a directory; the rename is then as durable as they make it.
  if (result != 0 && error != EINVAL) return IoError("cannot fsync directory " + directory, error);
  return Status::Ok();
}

Status WriteFileAtomically(const std::string& path, std::string_view content) {
  DF_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  DF_RETURN_IF_ERROR(file.Write(AsBytes(content)));
  return file.Commit();
}

Result<AtomicDirectory> AtomicDirectory::Create(const std::string& target, Options options) {
  std::string clean = WithoutTrailingSlash(target);
  std::error_code error;
  DF_RETURN_IF_ERROR(CheckReplaceable(clean, options));
  const fs::path parent = fs::path(clean).parent_path();
  if (!parent.empty()) fs::create_directories(parent, error);
  if (error) return IoError("cannot create directory " + parent.string(), error.value());
  DF_RETURN_IF_ERROR(ClearJournals(clean, options));
  internal::RemoveAbandoned(clean);
  std::string temporary = internal::TemporaryName(clean);
  if (mkdir(temporary.c_str(), 0755) != 0) return IoError("cannot create directory " + temporary, errno);
  const int lock_fd = open(temporary.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock_fd >= 0) (void)internal::LockTemporary(lock_fd);  // new: nobody else can have
  return AtomicDirectory(std::move(clean), std::move(temporary), lock_fd, std::move(options));
}

Result<std::optional<AtomicDirectory>> AtomicDirectory::TakeOver(const std::string& target, Options options) {
  DF_CHECK(!options.journal.empty());
  std::string clean = WithoutTrailingSlash(target);
  DF_RETURN_IF_ERROR(CheckReplaceable(clean, options));
  for (const std::string& path : internal::ListTemporaries(clean)) {
    if (!HasJournal(path, options)) continue;
    const int lock_fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock_fd < 0) return IoError("cannot open " + path, errno);
    AtomicDirectory directory(clean, path, lock_fd, options);
    directory.Keep(true);
    if (!internal::LockTemporary(lock_fd)) return BeingWritten(clean, path);
    // A name of our own: where there are no locks, one of two that want it gets it.
    directory.temporary_ = internal::TemporaryName(clean);
    if (std::rename(path.c_str(), directory.temporary_.c_str()) != 0) return IoError("cannot rename " + path, errno);
    return std::optional<AtomicDirectory>(std::move(directory));
  }
  return std::optional<AtomicDirectory>();
}

AtomicDirectory::AtomicDirectory(AtomicDirectory&& other) noexcept
    : target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, std::string())),
      lock_fd_(std::exchange(other.lock_fd_, -1)),
      options_(std::move(other.options_)),
      is_kept_(other.is_kept_) {}

AtomicDirectory::~AtomicDirectory() {
  std::error_code ignored;  // a destructor has nobody to tell
  if (!temporary_.empty() && !is_kept_) fs::remove_all(temporary_, ignored);
  if (lock_fd_ >= 0) close(lock_fd_);
}

Status AtomicDirectory::WriteFile(const std::string& name, std::string_view content) const {
  const std::string path = temporary_ + "/" + name;
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd < 0) return IoError("cannot create " + path, errno);
  const Status status = internal::WriteFully(fd, 0, AsBytes(content), path);
  close(fd);
  return status;
}

Status AtomicDirectory::Commit() {
  DF_RETURN_IF_ERROR(SyncTree(temporary_));
  std::error_code ignored;
  const bool replaces = options_.replace && fs::exists(fs::symlink_status(target_, ignored));
  if (replaces) {
    DF_RETURN_IF_ERROR(Exchange(temporary_, target_));
    fs::remove_all(temporary_, ignored);  // the old one; what is left of it harms nobody
  } else if (std::rename(temporary_.c_str(), target_.c_str()) != 0) {
    if (errno == ENOTEMPTY || errno == EEXIST || errno == ENOTDIR) {
      return FailedPrecondition(target_ + " was made by another process in the meantime; it is not replaced");
    }
    return IoError("cannot rename " + temporary_ + " to " + target_, errno);
  }
  temporary_.clear();
  return SyncDirectoryOf(target_);
}

Result<std::string> ReadFileBounded(const std::string& path, size_t max_bytes) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return AbsenceOf(path);
    if (errno == ENXIO) return NoRegularFile(path);  // a socket
    return IoError("cannot open " + path, errno);
  }
  struct Closer {
    int fd;
    ~Closer() { close(fd); }
  } const closer{fd};
  struct stat info = {};
  if (fstat(fd, &info) != 0) return IoError("cannot stat " + path, errno);
  if (!S_ISREG(info.st_mode)) return NoRegularFile(path);
  if (static_cast<uint64_t>(info.st_size) > max_bytes) {
    return ResourceExhausted(path + " has " + std::to_string(info.st_size) + " bytes, at most " +
                             std::to_string(max_bytes) + " are accepted");
  }
  std::string content(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t got = pread(fd, content.data() + done, content.size() - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return IoError("cannot read " + path, errno);
    if (got == 0) break;  // shrank while being read
    done += static_cast<size_t>(got);
  }
  content.resize(done);
  return content;
}

}  // namespace df
