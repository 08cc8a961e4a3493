#include "store/state_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string_view>
#include <utility>

#include "base/atomic_file.h"
#include "base/json.h"

namespace df {
namespace {

constexpr int64_t kVersion = 1;
constexpr size_t kMaxBytes = size_t{64} << 20;  // a line has some hundred bytes: a hundred thousand changes
// Rewritten when it has grown to twice its shortest form and by more than this: rare, and bounded.
constexpr uint64_t kSlackBytes = uint64_t{1} << 20;

std::string Line(const Json& json) { return DumpJson(json) + "\n"; }

std::string HeaderLine() { return Line({{"deltafold_state", kVersion}}); }

std::string RegisterLine(const std::string& name, const StoredRegistration& at) {
  return Line(
      {{"op", "register"}, {"name", name}, {"directory", at.directory}, {"root", at.root}, {"parent", at.parent}});
}

std::string PinLine(const std::string& name, bool pinned) {
  return Line({{"op", pinned ? "pin" : "unpin"}, {"name", name}});
}

Status Apply(const Json& json, StoredState& state) {
  if (!json.is_object()) return Corrupt("not an object");
  DF_ASSIGN_OR_RETURN(const std::string op, JsonString(json, "op"));
  DF_ASSIGN_OR_RETURN(const std::string name, JsonString(json, "name"));
  if (op == "register") {
    StoredRegistration at;
    DF_ASSIGN_OR_RETURN(at.directory, JsonString(json, "directory"));
    DF_ASSIGN_OR_RETURN(at.root, JsonStringOr(json, "root", at.directory));
    DF_ASSIGN_OR_RETURN(at.parent, JsonStringOr(json, "parent", ""));
    state.registrations[name] = std::move(at);
  } else if (op == "retire") {
    state.registrations.erase(name);
    state.pins.erase(name);
  } else if (op == "pin" || op == "unpin") {
    state.pins[name] = op == "pin";
  } else {
    return Corrupt("unknown op \"" + op + "\"");
  }
  return Status::Ok();
}

// Whether the first line is ours: of our version or, in a file cut inside it, its beginning.
Result<bool> ReadHeader(std::string_view line, bool is_cut) {
  if (is_cut && HeaderLine().starts_with(line)) return true;
  const Result<Json> header = ParseJson(line);
  if (!header.ok() || !header->is_object()) return false;
  const Result<int64_t> version = JsonInt(*header, "deltafold_state", {.min = 1});
  if (!version.ok()) return false;
  if (*version == kVersion) return true;
  return Unsupported("a state file of version " + std::to_string(*version) + ", this program reads version " +
                     std::to_string(kVersion));
}

// Whether the open file is still the one of that name.
bool IsAt(int fd, const std::string& path) {
  struct stat open_file = {}, named = {};
  return fstat(fd, &open_file) == 0 && stat(path.c_str(), &named) == 0 && open_file.st_ino == named.st_ino &&
         open_file.st_dev == named.st_dev;
}

Status ReadLines(std::string_view text, StoredState& state, std::vector<std::string>& warnings) {
  for (size_t number = 1; !text.empty(); ++number) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    const bool is_cut = end == std::string_view::npos;
    text = is_cut ? std::string_view() : text.substr(end + 1);
    if (number == 1) {
      DF_ASSIGN_OR_RETURN(const bool is_ours, ReadHeader(line, is_cut));
      if (!is_ours) return FailedPrecondition("it is no state file of deltafold: give another name or move it away");
      if (!is_cut) continue;
    }
    if (is_cut) {  // never acknowledged: that happens after the line with its end is on disk
      warnings.push_back("line " + std::to_string(number) + " is cut short and left out");
      return Status::Ok();
    }
    const Result<Json> json = ParseJson(line);
    const Status applied = json.ok() ? Apply(*json, state) : json.status();
    if (!applied.ok()) warnings.push_back("line " + std::to_string(number) + " is left out: " + applied.message());
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<StateFile>> StateFile::Open(const std::string& path, std::vector<std::string>& warnings) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
  if (fd < 0) return IoError("cannot open the state file " + path, errno);
  std::error_code error;
  const std::filesystem::path target = std::filesystem::canonical(path, error);  // a link to it stays
  std::unique_ptr<StateFile> file(new StateFile(error ? path : target.string()));
  file->fd_ = fd;
  // Locked before it is read: two servers must not both take it for theirs.
  if (flock(file->fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return IoError("cannot lock the state file " + path, errno);
    return FailedPrecondition(path + " is in use by another process: give each server its own state file");
  }
  if (!IsAt(file->fd_, path)) return Unavailable(path + " was replaced while it was opened: try again");
  DF_ASSIGN_OR_RETURN(const std::string content, ReadFileBounded(path, kMaxBytes));
  const Status read = ReadLines(content, file->state_, warnings);
  if (!read.ok()) return read.Annotate(path);
  for (std::string& warning : warnings) warning = path + ": " + warning;
  if (const Status rewritten = file->Rewrite(); !rewritten.ok()) {
    DF_RETURN_IF_ERROR(file->GoOnUnshortened(content, rewritten));
    warnings.push_back("the state file " + path +
                       " is used as it is: it could not be rewritten in its shortest "
                       "form: " +
                       rewritten.message() + "; make room on its disk, or changes may be refused");
  }
  return file;
}

// The file as it was read, when it is whole but for a last line that was never acknowledged.
Status StateFile::GoOnUnshortened(const std::string& content, const Status& why) {
  if (!is_named_) return Status::Ok();                     // it is rewritten; the next change makes its name durable
  size_bytes_ = compact_bytes_ = content.rfind('\n') + 1;  // 0: not even the first line
  if (size_bytes_ > 0 && (size_bytes_ == content.size() || ftruncate(fd_, static_cast<off_t>(size_bytes_)) == 0)) {
    return Status::Ok();
  }
  return why.Annotate("the state file " + path_ +
                      " cannot be written: make room on its disk, or give another with --state-file");
}

StateFile::~StateFile() {
  if (fd_ >= 0) close(fd_);
}

Status StateFile::Rewrite() {
  std::string content = HeaderLine();
  for (const auto& [name, at] : state_.registrations) content += RegisterLine(name, at);
  for (const auto& [name, pinned] : state_.pins) content += PinLine(name, pinned);
  struct stat former = {};
  if (fstat(fd_, &former) != 0) return IoError("cannot stat " + path_, errno);
  DF_ASSIGN_OR_RETURN(AtomicFile next, AtomicFile::Create(path_));
  DF_RETURN_IF_ERROR(next.Write(AsBytes(content)));
  if (fchmod(next.fd(), former.st_mode & 07777) != 0) return IoError("cannot set the mode of " + path_, errno);
  if (flock(next.fd(), LOCK_EX | LOCK_NB) != 0) return IoError("cannot lock " + path_, errno);
  DF_RETURN_IF_ERROR(next.Rename());
  // The name stands for the new file, locked already: from here on nothing may go to the old one.
  close(std::exchange(fd_, next.Release()));
  size_bytes_ = compact_bytes_ = content.size();
  is_named_ = false;
  return MakeNamed();
}

Status StateFile::MakeNamed() {
  if (!is_named_) DF_RETURN_IF_ERROR(SyncDirectoryOf(path_));
  is_named_ = true;
  return Status::Ok();
}

Status StateFile::Append(const std::string& lines) {
  DF_RETURN_IF_ERROR(broken_);
  DF_RETURN_IF_ERROR(MakeNamed());  // or what is acknowledged now would not be found after a power failure
  const ssize_t written = pwrite(fd_, lines.data(), lines.size(), static_cast<off_t>(size_bytes_));
  int error = written < 0 ? errno : ENOSPC;
  if (written == static_cast<ssize_t>(lines.size())) {
    if (fdatasync(fd_) == 0) {
      size_bytes_ += lines.size();
      return Status::Ok();
    }
    error = errno;
  }
  Status failure = IoError("cannot write the state file " + path_, error);
  // What is half there must not run into the next line, nor come back after a restart.
  if (ftruncate(fd_, static_cast<off_t>(size_bytes_)) != 0 || fdatasync(fd_) != 0) broken_ = failure;
  return failure;
}

void StateFile::CompactWhenLong() {
  if (size_bytes_ < 2 * compact_bytes_ + kSlackBytes) return;
  const Status rewritten = Rewrite();
  if (!rewritten.ok()) compact_bytes_ = size_bytes_;  // the lines are in either file: try again much later
}

Status StateFile::Register(const std::string& name, const StoredRegistration& registration, bool pinned) {
  DF_RETURN_IF_ERROR(Append(RegisterLine(name, registration) + (pinned ? PinLine(name, true) : "")));
  state_.registrations[name] = registration;
  if (pinned) state_.pins[name] = true;
  CompactWhenLong();
  return Status::Ok();
}

Status StateFile::Retire(const std::string& name) {
  if (!state_.registrations.contains(name) && !state_.pins.contains(name)) return Status::Ok();
  DF_RETURN_IF_ERROR(Append(Line({{"op", "retire"}, {"name", name}})));
  state_.registrations.erase(name);
  state_.pins.erase(name);
  CompactWhenLong();
  return Status::Ok();
}

Status StateFile::SetPinned(const std::string& name, bool pinned) {
  DF_RETURN_IF_ERROR(Append(PinLine(name, pinned)));
  state_.pins[name] = pinned;
  CompactWhenLong();
  return Status::Ok();
}

}  // namespace df
