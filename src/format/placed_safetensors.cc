#include "format/placed_safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/append_file.h"

namespace df {
namespace {

// Whether `fd` holds a file of this layout, as another process left it.
bool HasLayout(int fd, const SafetensorsLayout& layout) {
  struct stat info = {};
  if (fstat(fd, &info) != 0) return false;
  if (static_cast<uint64_t>(info.st_size) != layout.prefix.size() + layout.data_bytes) return false;
  std::string prefix(layout.prefix.size(), '\0');
  return pread(fd, prefix.data(), prefix.size(), 0) == static_cast<ssize_t>(prefix.size()) && prefix == layout.prefix;
}

}  // namespace

Result<PlacedSafetensors> PlacedSafetensors::Open(const std::string& path, const std::vector<TensorSpec>& specs,
                                                  const std::map<std::string, std::string>& metadata) {
  Result<SafetensorsLayout> layout = LayOutSafetensors(specs, metadata);
  if (!layout.ok()) return layout.status().Annotate(path);
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return IoError("cannot create " + path, errno);
  const bool was_there = HasLayout(fd, *layout);
  PlacedSafetensors file(path, std::move(*layout), fd, was_there);
  if (was_there) return file;
  const uint64_t size = file.layout_.prefix.size() + file.layout_.data_bytes;
  if (ftruncate(fd, 0) != 0 || ftruncate(fd, static_cast<off_t>(size)) != 0) {
    return IoError("cannot size " + path, errno);
  }
  DF_RETURN_IF_ERROR(internal::WriteFully(fd, 0, AsBytes(file.layout_.prefix), path));
  return file;
}

PlacedSafetensors::PlacedSafetensors(PlacedSafetensors&& other) noexcept
    : path_(std::move(other.path_)),
      layout_(std::move(other.layout_)),
      fd_(std::exchange(other.fd_, -1)),
      was_there_(other.was_there_) {}

PlacedSafetensors::~PlacedSafetensors() {
  if (fd_ >= 0) close(fd_);
}

Status PlacedSafetensors::Write(size_t place, uint64_t offset_bytes, Bytes data) const {
  return internal::WriteFully(fd_, layout_.prefix.size() + layout_.begin_bytes[place] + offset_bytes, data, path_);
}

void PlacedSafetensors::StartSync() const { (void)sync_file_range(fd_, 0, 0, SYNC_FILE_RANGE_WRITE); }

Status PlacedSafetensors::Sync() const {
  if (fdatasync(fd_) != 0) return IoError("cannot write " + path_ + " to the disk", errno);
  return Status::Ok();
}

}  // namespace df
