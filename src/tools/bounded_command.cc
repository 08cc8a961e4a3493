#include "tools/bounded_command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "base/clock.h"

extern char** environ;

namespace df::tools {
namespace {

constexpr size_t kKeptBytes = size_t{64} << 10;
constexpr size_t kQuotedBytes = 2000;  // of the output in a message

// The reading end of a pipe, and the end of what came through it.
struct Reader {
  int fd = -1;
  std::string text;

  Reader() = default;
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() { Close(); }

  void Close() {
    if (fd >= 0) close(std::exchange(fd, -1));
  }

  // Takes what is there.
  void Drain() {
    std::array<char, 16384> buffer = {};
    while (fd >= 0) {
      const ssize_t got = read(fd, buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) return Close();
      text.append(buffer.data(), static_cast<size_t>(got));
      if (text.size() > 2 * kKeptBytes) text.erase(0, text.size() - kKeptBytes);
    }
  }
};

// The child: a process group of its own, which is killed and waited for at the end.
class Child {
 public:
  explicit Child(pid_t pid) : pid_(pid) {}
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { (void)End(); }

  // It stays a zombie, so that its number, the group's, is nobody else's until End.
  bool HasEnded() const {
    siginfo_t info = {};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT | WNOHANG) != 0 || info.si_pid == pid_;
  }

  // As waitpid's status.
  int End() {
    if (pid_ <= 0) return status_;
    kill(-pid_, SIGKILL);
    while (waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
    }
    pid_ = 0;
    return status_;
  }

 private:
  pid_t pid_;
  int status_ = 0;
};

struct SpawnSettings {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  SpawnSettings() {
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;
  ~SpawnSettings() {
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
  }
};

Status OpenPipe(Reader& reader, int& write_end) {
  int ends[2] = {-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) return IoError("cannot make a pipe", errno);
  reader.fd = ends[0];
  write_end = ends[1];
  if (fcntl(reader.fd, F_SETFL, O_NONBLOCK) != 0) return IoError("cannot set up a pipe", errno);
  return Status::Ok();
}

// Both writing ends belong to the child afterwards.
Result<pid_t> Spawn(const std::string& command, int out, int error) {
  SpawnSettings settings;
  posix_spawn_file_actions_addopen(&settings.files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&settings.files, out, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&settings.files, error, STDERR_FILENO);
  sigset_t none, usual;
  sigemptyset(&none);
  sigemptyset(&usual);
  for (const int number : {SIGINT, SIGTERM, SIGPIPE, SIGCHLD}) sigaddset(&usual, number);
  posix_spawnattr_setsigmask(&settings.attributes, &none);
  posix_spawnattr_setsigdefault(&settings.attributes, &usual);
  posix_spawnattr_setpgroup(&settings.attributes, 0);
  posix_spawnattr_setflags(&settings.attributes,
                           POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  std::string shell = "sh", flag = "-c", text = command;
  char* const arguments[] = {shell.data(), flag.data(), text.data(), nullptr};
  pid_t pid = 0;
  const int failed = posix_spawn(&pid, "/bin/sh", &settings.files, &settings.attributes, arguments, environ);
  if (failed != 0) return IoError("cannot run /bin/sh", failed);
  return pid;
}

std::string EndOf(const std::string& text) {
  return text.size() <= kQuotedBytes ? text : "..." + text.substr(text.size() - kQuotedBytes);
}

std::string Printed(const CommandOutput& output) {
  std::string text;
  if (!output.out.empty()) text += "\n  it printed: " + EndOf(output.out);
  if (!output.error.empty()) text += "\n  to stderr: " + EndOf(output.error);
  return text.empty() ? "; it printed nothing" : text;
}

}  // namespace

Result<CommandOutput> RunCommand(const std::string& command, const CommandOptions& options) {
  Reader out, error;
  int out_end = -1, error_end = -1;
  Status piped = OpenPipe(out, out_end);
  if (piped.ok()) piped = OpenPipe(error, error_end);
  Result<pid_t> pid = piped.ok() ? Spawn(command, out_end, error_end) : Result<pid_t>(piped);
  if (out_end >= 0) close(out_end);
  if (error_end >= 0) close(error_end);
  if (!pid.ok()) return pid.status();
  Child child(*pid);
  const SteadyClock clock;
  const auto end_us = static_cast<double>(clock.NowUs()) + options.timeout_s * 1e6;
  bool is_late = false;
  while (!child.HasEnded() && !is_late) {
    if (options.go_on && !options.go_on()) return Cancelled("interrupted during: " + command);
    pollfd fds[] = {{.fd = out.fd, .events = POLLIN, .revents = 0}, {.fd = error.fd, .events = POLLIN, .revents = 0}};
    // A child that closed its outputs is polled for by time alone.
    (void)poll(fds, 2, out.fd >= 0 && error.fd >= 0 ? 100 : 20);
    out.Drain();
    error.Drain();
    is_late = static_cast<double>(clock.NowUs()) > end_us;
  }
  const int status = child.End();
  out.Drain();
  error.Drain();
  CommandOutput output{.out = std::move(out.text), .error = std::move(error.text)};
  if (is_late) {
    return DeadlineExceeded("the command took longer than " + std::to_string(static_cast<int64_t>(options.timeout_s)) +
                            " s and was ended: " + command + Printed(output));
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return output;
  const std::string how = WIFEXITED(status) ? "exit status " + std::to_string(WEXITSTATUS(status))
                                            : "signal " + std::to_string(WTERMSIG(status));
  return FailedPrecondition("the command failed with " + how + ": " + command + Printed(output));
}

std::string ShellQuoted(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

std::optional<double> LastNumber(std::string_view text) {
  const auto is_word = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '+' || c == '-';
  };
  size_t end = text.size();
  while (end > 0) {
    while (end > 0 && !is_word(text[end - 1])) --end;
    size_t begin = end;
    while (begin > 0 && is_word(text[begin - 1])) --begin;
    if (begin == end) break;
    std::string word(text.substr(begin, end - begin));
    if (word.back() == '.') word.pop_back();  // the end of a sentence
    end = begin;
    const bool is_hexadecimal = word.find_first_of("xX(") != std::string::npos;
    char* stop = nullptr;
    const double value = std::strtod(word.c_str(), &stop);
    if (!word.empty() && !is_hexadecimal && stop == word.c_str() + word.size()) return value;
  }
  return std::nullopt;
}

}  // namespace df::tools
