// A safetensors file whose data is written at any place, by several threads, and by one process after another: for work
// that can be resumed, in a directory that appears as a whole (base/atomic_file.h). Who writes front to back, and wants
// a file that appears by itself, takes SafetensorsWriter.
#ifndef DELTAFOLD_FORMAT_PLACED_SAFETENSORS_H_
#define DELTAFOLD_FORMAT_PLACED_SAFETENSORS_H_

#include <map>
#include <string>
#include <vector>

#include "format/safetensors.h"

namespace df {

class PlacedSafetensors {
 public:
  // Creates `path`, or reopens what another process with the same specs and metadata began; a file of another header or
  // size is made anew, and `was_there` says so. The only errors are kInvalidArgument (specs) and kIo.
  static Result<PlacedSafetensors> Open(const std::string& path, const std::vector<TensorSpec>& specs,
                                        const std::map<std::string, std::string>& metadata);
  PlacedSafetensors(PlacedSafetensors&& other) noexcept;
  PlacedSafetensors& operator=(PlacedSafetensors&&) = delete;
  ~PlacedSafetensors();

  bool was_there() const { return was_there_; }
  // Bytes of the tensor `place` (among the specs) from `offset_bytes` on. Thread-safe for parts that do not overlap.
  // The only error is kIo.
  Status Write(size_t place, uint64_t offset_bytes, Bytes data) const;
  // Lets the disk begin with what was written so far; waits for nothing.
  void StartSync() const;
  // Everything written is on the disk. kIo.
  Status Sync() const;

  const std::string& path() const { return path_; }

 private:
  PlacedSafetensors(std::string path, SafetensorsLayout layout, int fd, bool was_there)
      : path_(std::move(path)), layout_(std::move(layout)), fd_(fd), was_there_(was_there) {}

  std::string path_;
  SafetensorsLayout layout_;
  int fd_ = -1;
  bool was_there_ = false;
};

}  // namespace df

#endif  // DELTAFOLD_FORMAT_PLACED_SAFETENSORS_H_
