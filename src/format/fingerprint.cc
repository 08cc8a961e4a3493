// Fingerprints of base weights, remembered between runs: reading gigabytes only to learn that nothing changed is what
// makes a server start slowly.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "base/atomic_file.h"
#include "format/checkpoint.h"
#include "format/digest.h"
#include "format/message.h"

namespace df {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxConfigBytes = size_t{16} << 20;  // as the JSON reader takes

// "$XDG_CACHE_HOME/deltafold/fingerprints", "~/.cache/..." or empty when neither is known.
std::string CacheDirectory() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return std::string(cache) + "/deltafold/fingerprints";
  const char* home = std::getenv("HOME");
  if (home != nullptr && home[0] == '/') return std::string(home) + "/.cache/deltafold/fingerprints";
  return {};
}

// Where the fingerprint of these tensors of these very files is kept; empty when it cannot be kept. A file written
// within the last two seconds could be written again under the same time stamp.
std::string CachePath(const std::vector<const MappedFile*>& files, const std::vector<std::string>& names) {
  const std::string directory = CacheDirectory();
  if (directory.empty()) return {};
  const int64_t now_ns =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  Digest key;
  key.AddText("deltafold fingerprint cache 1");
  for (const MappedFile* file : files) {
    const FileIdentity& id = file->identity();
    if (id.modified_ns > now_ns - 2'000'000'000) return {};
    std::error_code error;
    key.AddText(fs::absolute(file->path(), error).string());
    for (const uint64_t part : {id.device, id.inode, id.size_bytes, static_cast<uint64_t>(id.modified_ns)}) {
      key.AddText(std::to_string(part));
    }
  }
  for (const std::string& name : names) key.AddText(name);
  return directory + "/" + key.Hex();
}

std::string ReadCached(const std::string& path) {
  if (path.empty()) return {};
  const Result<std::string> text = ReadFileBounded(path, 64);
  return text.ok() && IsDigest(*text) ? *text : std::string();
}

void WriteCached(const std::string& path, const std::string& fingerprint) {
  if (path.empty()) return;
  std::error_code error;
  fs::create_directories(fs::path(path).parent_path(), error);
  // A cache that cannot be written costs time at the next start, nothing else.
  if (!error) static_cast<void>(WriteFileAtomically(path, fingerprint).ok());
}

}  // namespace

Result<std::string> FilesIdentity(const Checkpoint& checkpoint) {
  DF_ASSIGN_OR_RETURN(const std::string config,
                      ReadFileBounded(checkpoint.directory() + "/config.json", kMaxConfigBytes));
  std::set<const MappedFile*> files;
  for (const std::string& name : checkpoint.names()) files.insert(checkpoint.FindOrNull(name)->file);
  std::set<std::string> lines;
  for (const MappedFile* file : files) {
    const FileIdentity& id = file->identity();
    std::string line = fs::path(file->path()).filename().string();
    for (const uint64_t part : {id.inode, id.size_bytes, static_cast<uint64_t>(id.modified_ns)}) {
      line += " " + std::to_string(part);
    }
    lines.insert(std::move(line));
  }
  Digest digest;
  digest.AddText(config);
  for (const std::string& line : lines) digest.AddText(line);
  return digest.Hex();
}

Result<std::string> Fingerprint(const Checkpoint& checkpoint, std::vector<std::string> names,
                                FingerprintOptions options) {
  std::sort(names.begin(), names.end());
  std::vector<const MappedFile*> files;
  for (const std::string& name : names) {
    const StoredTensor* tensor = checkpoint.FindOrNull(name);
    if (tensor == nullptr) return NotFound("tensor " + Quoted(name) + " is not in " + checkpoint.directory());
    if (std::find(files.begin(), files.end(), tensor->file) == files.end()) files.push_back(tensor->file);
  }
  const std::string cache_path = options.use_cache ? CachePath(files, names) : std::string();
  if (std::string cached = ReadCached(cache_path); !cached.empty()) return cached;

  Digest digest;
  for (const std::string& name : names) {
    const StoredTensor* tensor = checkpoint.FindOrNull(name);
    digest.AddTensor(name, tensor->view, tensor->file);
  }
  DF_RETURN_IF_ERROR(checkpoint.CheckIntact());
  std::string fingerprint = digest.Hex();
  WriteCached(cache_path, fingerprint);
  return fingerprint;
}

}  // namespace df
