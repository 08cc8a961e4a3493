#include "base/mapped_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>

#include "base/presence.h"

namespace df {
namespace {

// The SIGBUS handler may only touch lock-free atomics, so the mappings stand in a fixed table. 4096 mapped files are
// far beyond any sharded checkpoint plus its variants; a file beyond that is refused.
constexpr int kMaxMappings = 4096;

struct Mapping {
  std::atomic<uintptr_t> begin{0};  // 0: free
  std::atomic<uintptr_t> end{0};
  std::atomic<bool> damaged{false};
};

// Process-wide because a signal handler can be given no context.
std::array<Mapping, kMaxMappings> g_mappings;
std::mutex g_mappings_mutex;
struct sigaction g_previous_action;

void OnBusError(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Mapping& mapping : g_mappings) {
    // acquire pairs with the release store in Register: `end` is valid once `begin` is seen.
    const uintptr_t begin = mapping.begin.load(std::memory_order_acquire);
    if (begin == 0 || address < begin || address >= mapping.end.load(std::memory_order_relaxed)) continue;
    mapping.damaged.store(true, std::memory_order_release);
    const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    void* page = reinterpret_cast<void*>(address & ~(page_bytes - 1));
    if (mmap(page, page_bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED) return;
  }
  if ((g_previous_action.sa_flags & SA_SIGINFO) != 0) {
    g_previous_action.sa_sigaction(signal, info, context);
    return;
  }
  sigaction(SIGBUS, &g_previous_action, nullptr);  // not ours: the fault repeats under the former handler
}

int Register(const uint8_t* data, size_t size) {
  static std::once_flag installed;
  std::call_once(installed, [] {
    struct sigaction action = {};
    action.sa_sigaction = OnBusError;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &g_previous_action);
  });
  const std::lock_guard lock(g_mappings_mutex);
  for (int slot = 0; slot < kMaxMappings; ++slot) {
    Mapping& mapping = g_mappings[static_cast<size_t>(slot)];
    if (mapping.begin.load(std::memory_order_relaxed) != 0) continue;
    mapping.damaged.store(false, std::memory_order_relaxed);
    mapping.end.store(reinterpret_cast<uintptr_t>(data) + size, std::memory_order_relaxed);
    mapping.begin.store(reinterpret_cast<uintptr_t>(data), std::memory_order_release);
    return slot;
  }
  return -1;
}

// Closes on scope exit.
struct FileDescriptor {
  int fd;
  ~FileDescriptor() {
    if (fd >= 0) close(fd);
  }
};

// The whole pages inside `part`: pages shared with a neighbour stay.
MutableBytes InnerPages(Bytes part) {
  const auto page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(part.data()) + page_bytes - 1) & ~(page_bytes - 1);
  const auto end = (reinterpret_cast<uintptr_t>(part.data()) + part.size()) & ~(page_bytes - 1);
  if (end <= begin) return {};
  return {reinterpret_cast<uint8_t*>(begin), end - begin};
}

}  // namespace

Result<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  if (path.find('\0') != std::string::npos) return InvalidArgument("file name contains a NUL byte");
  // O_NONBLOCK: opening a FIFO without a writer must not hang.
  const FileDescriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return AbsenceOf(path);
    if (errno == ENXIO) return NoRegularFile(path);  // a socket
    return IoError("cannot open " + path, errno);
  }
  struct stat info = {};
  if (fstat(file.fd, &info) != 0) return IoError("cannot stat " + path, errno);
  if (!S_ISREG(info.st_mode)) return NoRegularFile(path);
  const auto size = static_cast<size_t>(info.st_size);
  const FileIdentity identity = {
      .device = static_cast<uint64_t>(info.st_dev),
      .inode = static_cast<uint64_t>(info.st_ino),
      .size_bytes = size,
      .modified_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec,
  };
  if (size == 0) return std::unique_ptr<MappedFile>(new MappedFile(path, identity, nullptr, 0, -1));
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) return IoError("cannot map " + path, errno);
  const auto* bytes = static_cast<const uint8_t*>(data);
  const int slot = Register(bytes, size);
  if (slot < 0) {
    munmap(data, size);
    return Unavailable("cannot map " + path + ": more than " + std::to_string(kMaxMappings) + " files are open");
  }
  return std::unique_ptr<MappedFile>(new MappedFile(path, identity, bytes, size, slot));
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  g_mappings[static_cast<size_t>(slot_)].begin.store(0, std::memory_order_release);
  munmap(const_cast<uint8_t*>(data_), size_);
}

bool MappedFile::Intact() const {
  return slot_ < 0 || !g_mappings[static_cast<size_t>(slot_)].damaged.load(std::memory_order_acquire);
}

Status MappedFile::CheckIntact() const {
  if (Intact()) return Status::Ok();
  return Corrupt(path_ + " was truncated or became unreadable while it was being read");
}

void MappedFile::WillNeed(Bytes part) const {
  const MutableBytes pages = InnerPages(part);
  if (!pages.empty()) madvise(pages.data(), pages.size(), MADV_WILLNEED);
}

void MappedFile::DropPages(Bytes part) const {
  const MutableBytes pages = InnerPages(part);
  if (!pages.empty() && Intact()) madvise(pages.data(), pages.size(), MADV_DONTNEED);
}

}  // namespace df
