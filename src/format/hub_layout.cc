// Where the Hugging Face client keeps downloaded models: HUB/models--ORG--NAME/{refs/main, snapshots/REVISION/files}.
#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/atomic_file.h"
#include "format/checkpoint.h"
#include "format/hub_cache.h"
#include "format/message.h"

namespace df {
namespace {

namespace fs = std::filesystem;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

std::string HubDirectory() {
  if (const std::string cache = Environment("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = Environment("HF_HOME"); !home.empty()) return home + "/hub";
  const std::string xdg = Environment("XDG_CACHE_HOME");
  const std::string cache = xdg.empty() ? Environment("HOME") + "/.cache" : xdg;
  return cache + "/huggingface/hub";
}

// "org/name" or "name", in the hub's alphabet: no path can hide in it.
bool IsHubId(const std::string& text) {
  if (text.empty() || text.size() > 200 || std::count(text.begin(), text.end(), '/') > 1) return false;
  const bool alphabet = std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.' || c == '/';
  });
  return alphabet && text.front() != '.' && text.front() != '/' && text.back() != '/' &&
         text.find("..") == std::string::npos && text.find("/.") == std::string::npos;
}

// A revision is a commit id; refs/main is a file that somebody else may have written.
bool IsRevision(const std::string& text) {
  return !text.empty() && text.size() <= 64 &&
         std::all_of(text.begin(), text.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; });
}

Result<std::string> FindSnapshot(const std::string& id, const std::string& repository) {
  Result<std::string> main = ReadFileBounded(repository + "/refs/main", 256);
  if (main.ok()) {
    while (!main->empty() && (main->back() == '\n' || main->back() == ' ')) main->pop_back();
    const std::string snapshot = repository + "/snapshots/" + *main;
    std::error_code error;
    if (IsRevision(*main) && fs::is_directory(snapshot, error)) return snapshot;
  }
  std::vector<std::string> snapshots;
  std::error_code error;
  fs::directory_iterator entries(repository + "/snapshots", error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
    std::error_code ignored;
    if (entries->is_directory(ignored)) snapshots.push_back(entries->path().string());
  }
  if (snapshots.size() == 1) return snapshots.front();
  return NotFound("model " + id + " has " + std::to_string(snapshots.size()) + " snapshots in " + repository +
                  " and no usable refs/main: give the directory of one");
}

}  // namespace

Result<std::string> ResolveModelDirectory(const std::string& argument) {
  std::error_code error;
  if (argument.find('\0') != std::string::npos) return InvalidArgument("the model argument contains a NUL byte");
  if (fs::is_directory(argument, error)) return argument;
  return FindInHubCache(argument);
}

Result<std::string> FindInHubCache(const std::string& id) {
  std::error_code error;
  if (!IsHubId(id)) return NotFound("no directory " + Quoted(id));
  std::string folder = "models--" + id;
  if (const size_t slash = folder.find('/'); slash != std::string::npos) folder.replace(slash, 1, "--");
  const std::string repository = HubDirectory() + "/" + folder;
  if (fs::is_directory(repository, error)) return FindSnapshot(id, repository);
  return NotFound("neither a directory " + Quoted(id) + " nor a model of that name in the local hub cache (" +
                  repository + "): download it first");
}

}  // namespace df
