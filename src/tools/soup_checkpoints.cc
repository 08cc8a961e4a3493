#include "tools/soup_checkpoints.h"

#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <optional>
#include <utility>

#include "format/checkpoint.h"
#include "format/digest.h"
#include "format/safetensors.h"
#include "format/variant_kind.h"

namespace df::tools {
namespace {

namespace fs = std::filesystem;

constexpr char kTrainerPrefix[] = "checkpoint-";
constexpr size_t kMaxFiles = 100'000;  // of a checkpoint: more is something else

// The last run of digits, at most 18 of them.
std::optional<uint64_t> StepOf(const std::string& name) {
  size_t end = name.size();
  while (end > 0 && std::isdigit(static_cast<unsigned char>(name[end - 1])) == 0) --end;
  size_t begin = end;
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(name[begin - 1])) != 0) --begin;
  uint64_t step = 0;
  if (begin == end || end - begin > 18) return std::nullopt;
  std::from_chars(name.data() + begin, name.data() + end, step);
  return step;
}

bool IsTrainers(const std::string& name) {
  return name.starts_with(kTrainerPrefix) &&
         name.find_first_not_of("0123456789", sizeof(kTrainerPrefix) - 1) == std::string::npos;
}

// What was read of a directory without opening a file.
struct Look {
  std::string stamp;
  double age_s = 0;  // since the last change of any file; negative: in the future
};

bool IsStamped(const std::string& name) {
  return name.ends_with(".safetensors") || name == "model.safetensors.index.json" || name == "config.json" ||
         name == "adapter_config.json";
}

// Nothing where it cannot be read, or changes under the reading.
std::optional<Look> LookAt(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator entries(directory, error); !error && entries != fs::directory_iterator();
       entries.increment(error)) {
    names.push_back(entries->path().filename().string());
    if (names.size() > kMaxFiles) return std::nullopt;
  }
  if (error) return std::nullopt;
  std::ranges::sort(names);
  Digest digest;
  struct stat info = {};
  if (stat(directory.c_str(), &info) != 0) return std::nullopt;
  auto latest = static_cast<double>(info.st_mtim.tv_sec);
  for (const std::string& name : names) {
    if (stat((directory + "/" + name).c_str(), &info) != 0) continue;  // a link to nothing is the readers' to refuse
    const int64_t modified_ns = int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
    latest = std::max(latest, static_cast<double>(modified_ns) * 1e-9);
    if (!IsStamped(name)) continue;
    digest.AddText(name);
    digest.AddText(std::to_string(info.st_size) + " " + std::to_string(modified_ns));
  }
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  const double now_s = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
  return Look{.stamp = digest.Hex(), .age_s = now_s - latest};
}

// Headers, index and sizes.
Status CheckFiles(const std::string& directory, DirectoryKind kind) {
  if (kind == DirectoryKind::kModel) return Checkpoint::Open(directory).status();
  return SafetensorsFile::Open(directory + "/adapter_model.safetensors").status();
}

WaitingCheckpoint Waiting(const std::string& name, std::string reason, bool is_settling = false) {
  return {.name = name, .reason = std::move(reason), .is_settling = is_settling};
}

// Adds the entry `path` to one of the lists, if it is a checkpoint at all.
void Judge(const fs::path& path, const FindOptions& options, FoundCheckpoints& found) {
  const std::string name = path.filename().string(), directory = path.string();
  std::error_code error;
  if (name.starts_with(".") || name.starts_with("tmp-") || !fs::is_directory(path, error)) return;
  if (!options.except.empty() && fs::equivalent(path, options.except, error)) return;
  const Result<DirectoryKind> kind = KindOfDirectory(directory);
  const bool is_model = kind.ok() && (*kind == DirectoryKind::kModel || *kind == DirectoryKind::kAdapter);
  const std::optional<Look> look = LookAt(directory);
  if (!look) return;  // gone
  if (!is_model) {
    if (IsTrainers(name)) found.waiting.push_back(Waiting(name, "there is no config.json or adapter_config.json yet"));
    return;
  }
  const std::optional<uint64_t> step = StepOf(name);
  if (!step) return found.waiting.push_back(Waiting(name, "its name has no step number"));
  const Status files = CheckFiles(directory, *kind);
  if (!files.ok()) {
    if (fs::is_directory(path, error)) found.waiting.push_back(Waiting(name, "not whole: " + files.message()));
    return;
  }
  if (IsTrainers(name) && !fs::exists(path / "trainer_state.json", error) && look->age_s < options.stateless_s) {
    return found.waiting.push_back(Waiting(name, "there is no trainer_state.json yet, which is written last"));
  }
  if (std::abs(look->age_s) < options.settle_s) {
    return found.waiting.push_back(Waiting(name, "written to a moment ago", /*is_settling=*/true));
  }
  found.complete.push_back({.name = name, .directory = directory, .step = *step, .stamp = look->stamp});
}

}  // namespace

Result<FoundCheckpoints> FindCheckpoints(const std::string& directory, const FindOptions& options) {
  std::error_code error;
  std::vector<fs::path> paths;
  for (fs::directory_iterator entries(directory, error); !error && entries != fs::directory_iterator();
       entries.increment(error)) {
    paths.push_back(entries->path());
  }
  if (error == std::errc::no_such_file_or_directory) return NotFound("there is no directory " + directory);
  if (error == std::errc::not_a_directory) return FailedPrecondition(directory + " is no directory");
  if (error) return IoError("cannot read directory " + directory, error.value());
  std::ranges::sort(paths);
  FoundCheckpoints found;
  for (const fs::path& path : paths) Judge(path, options, found);
  std::ranges::sort(found.complete, {}, [](const FoundCheckpoint& one) { return std::pair(one.step, one.name); });
  return found;
}

bool IsUnchanged(const FoundCheckpoint& checkpoint) {
  const std::optional<Look> look = LookAt(checkpoint.directory);
  return look && look->stamp == checkpoint.stamp;
}

}  // namespace df::tools
