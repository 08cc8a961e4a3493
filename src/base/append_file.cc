#include "base/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace df {

Result<AppendFile> AppendFile::Create(const std::string& path, uint64_t first_byte) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return IoError("cannot create " + path, errno);
  return AppendFile(path, fd, first_byte);
}

Result<AppendFile> AppendFile::Reopen(const std::string& path, uint64_t keep_bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return IoError("cannot open " + path, errno);
  AppendFile file(path, fd, keep_bytes);
  if (ftruncate(fd, static_cast<off_t>(keep_bytes)) != 0) return IoError("cannot cut " + path, errno);
  return file;
}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      size_bytes_(other.size_bytes_),
      started_bytes_(other.started_bytes_) {}

AppendFile::~AppendFile() {
  if (fd_ >= 0) close(fd_);
}

Status AppendFile::Append(Bytes bytes) {
  DF_CHECK(fd_ >= 0);
  DF_RETURN_IF_ERROR(internal::WriteFully(fd_, size_bytes_, bytes, path_));
  size_bytes_ += bytes.size();
  return Status::Ok();
}

Status AppendFile::WriteAt(uint64_t offset_bytes, Bytes bytes) {
  DF_CHECK(fd_ >= 0 && offset_bytes <= size_bytes_ && bytes.size() <= size_bytes_ - offset_bytes);
  return internal::WriteFully(fd_, offset_bytes, bytes, path_);
}

void AppendFile::StartWriteback() {
  constexpr uint64_t kLeastBytes = uint64_t{4} << 20;
  if (size_bytes_ - started_bytes_ < kLeastBytes) return;
  // A request: where it fails, fsync has more to do, and says why it cannot.
  static_cast<void>(sync_file_range(fd_, static_cast<off_t>(started_bytes_),
                                    static_cast<off_t>(size_bytes_ - started_bytes_), SYNC_FILE_RANGE_WRITE));
  started_bytes_ = size_bytes_;
}

Status AppendFile::Sync() {
  DF_CHECK(fd_ >= 0);
  return fdatasync(fd_) == 0 ? Status::Ok() : IoError("cannot sync " + path_, errno);
}

namespace internal {

Status WriteFully(int fd, uint64_t offset_bytes, Bytes bytes, const std::string& path) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t written =
        pwrite(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset_bytes + done));
    if (written < 0) {
      if (errno == EINTR) continue;
      return IoError("cannot write " + path, errno);
    }
    done += static_cast<size_t>(written);
  }
  return Status::Ok();
}

}  // namespace internal
}  // namespace df
