#include "base/temporary_name.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>

namespace df::internal {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kInfix = ".tmp-";

// Process-wide: names must differ whoever asks.
std::atomic<uint64_t> g_next_number{0};

struct Writer {
  pid_t pid = 0;
  uint64_t number = 0;
};

// "PID-N"
std::optional<Writer> ParseWriter(std::string_view text) {
  Writer writer;
  const char* const end = text.data() + text.size();
  const auto [dash, pid_error] = std::from_chars(text.data(), end, writer.pid);
  if (pid_error != std::errc() || writer.pid <= 0 || dash == end || *dash != '-') return std::nullopt;
  const auto [rest, number_error] = std::from_chars(dash + 1, end, writer.number);
  if (number_error != std::errc() || rest != end) return std::nullopt;
  return writer;
}

bool IsGone(const Writer& writer) {
  // A process of our number before us: the first process of every container has the same.
  if (writer.pid == getpid()) return writer.number >= g_next_number.load(std::memory_order_relaxed);
  return kill(writer.pid, 0) != 0 && errno == ESRCH;
}

// flock's answer for `path`: 0 when nobody holds it, else the error. Links are not followed.
int TryLock(const fs::path& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return errno;
  const int error = flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
  close(fd);
  return error;
}

}  // namespace

std::string TemporaryName(const std::string& target) {
  return target + std::string(kInfix) + std::to_string(getpid()) + "-" +
         std::to_string(g_next_number.fetch_add(1, std::memory_order_relaxed));
}

bool LockTemporary(int fd) { return flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK; }

std::vector<std::string> ListTemporaries(const std::string& target) {
  const fs::path path(target);
  const fs::path parent = path.parent_path().empty() ? "." : path.parent_path();
  const std::string prefix = path.filename().string() + std::string(kInfix);
  std::vector<std::string> found;
  std::error_code error;
  for (fs::directory_iterator entries(parent, error); !error && entries != fs::directory_iterator();
       entries.increment(error)) {
    const std::string name = entries->path().filename().string();
    if (name.starts_with(prefix) && ParseWriter(std::string_view(name).substr(prefix.size()))) {
      found.push_back(entries->path().string());
    }
  }
  std::ranges::sort(found);
  return found;
}

bool IsLocked(const std::string& path) { return TryLock(path) == EWOULDBLOCK; }

void RemoveAbandoned(const std::string& target) {
  const size_t prefix_length = fs::path(target).filename().string().size() + kInfix.size();
  for (const std::string& path : ListTemporaries(target)) {
    const std::string name = fs::path(path).filename().string();
    const std::optional<Writer> writer = ParseWriter(std::string_view(name).substr(prefix_length));
    std::error_code ignored;  // the next writer tries again
    if (writer && IsGone(*writer) && TryLock(path) == 0) fs::remove_all(path, ignored);
  }
}

}  // namespace df::internal
