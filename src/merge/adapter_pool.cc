#include "merge/adapter_pool.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <string_view>
#include <thread>

#include "base/atomic_file.h"
#include "base/check.h"
#include "base/clock.h"
#include "format/message.h"
#include "merge/adapter_writer.h"

namespace df {
namespace {

namespace fs = std::filesystem;

constexpr char kStateName[] = "/pool.json";
constexpr char kLockName[] = "/pool.lock";
constexpr char kSlotsName[] = "/slots";
constexpr size_t kMaxStateBytes = size_t{256} << 20;
constexpr std::chrono::milliseconds kLockPause(50);  // between two looks at a lock, which tells nobody when it is free

// What is wrong with a slot's files; "" = nothing, as far as their sizes tell, or with `reads_all` their bytes.
std::string DamageOfSlot(const std::string& directory, const PoolSlot& slot, bool reads_all) {
  const Result<std::shared_ptr<const PeftAdapter>> adapter =
      PeftAdapter::Open(directory + kSlotsName + "/" + slot.name);
  if (!adapter.ok()) return adapter.status().message();
  if (const uint64_t bytes = TensorBytes(**adapter); bytes != slot.bytes) {
    return "it has " + std::to_string(bytes) + " bytes of tensors, pool.json says " + std::to_string(slot.bytes);
  }
  if (!reads_all) return "";
  const Result<std::string> digest = (*adapter)->Digest();
  if (!digest.ok()) return digest.status().message();
  return *digest == slot.digest ? "" : "its digest is " + *digest + ", pool.json says " + slot.digest;
}

Result<PoolState> ReadMarked(const std::string& directory, const std::string& text) {
  Result<PoolState> state = ParsePoolState(text);
  if (!state.ok()) return state.status().Annotate(directory + kStateName);
  for (PoolSlot& slot : state->slots) slot.damage = DamageOfSlot(directory, slot, false);
  return state;
}

bool Has(const PoolState& state, std::string_view slot) {
  return std::ranges::any_of(state.slots, [&](const PoolSlot& other) { return other.name == slot; });
}

// The lock file holds who has it, for messages alone: a stale number may stand there while nobody does.
void WriteHolder(int fd) {
  const std::string holder = std::to_string(getpid()) + "\n";
  const bool is_written = ftruncate(fd, 0) == 0 && pwrite(fd, holder.data(), holder.size(), 0) > 0;
  static_cast<void>(is_written);  // a full disk must not close the pool
}

std::string HolderOf(int fd) {
  char text[16] = {};
  const ssize_t n_bytes = pread(fd, text, sizeof(text) - 1, 0);
  const std::string_view digits(text, std::find(text, text + std::max<ssize_t>(n_bytes, 0), '\n'));
  const bool is_number = !digits.empty() && std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
  return is_number ? "process " + std::string(digits) : "another process";
}

// What a stopped process left: slots that the state does not speak of, and unfinished ones.
void RemoveOrphans(const std::string& directory, const PoolState& state) {
  std::error_code ignored;  // what stays takes room, and is looked at again by the next
  std::vector<fs::path> orphans;
  for (fs::directory_iterator at(directory + kSlotsName, ignored), end; !ignored && at != end; at.increment(ignored)) {
    if (!Has(state, at->path().filename().string())) orphans.push_back(at->path());
  }
  for (const fs::path& orphan : orphans) fs::remove_all(orphan, ignored);
}

}  // namespace

Result<std::unique_ptr<AdapterPool>> AdapterPool::Locked(const std::string& directory, const PoolLockWait& wait) {
  const std::string path = directory + kLockName;
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) return IoError("cannot open " + path, errno);
  std::unique_ptr<AdapterPool> pool(new AdapterPool(directory, fd));
  const SteadyClock clock;
  const int64_t begin_us = clock.NowUs();
  for (bool is_first = true;; is_first = false) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
      WriteHolder(fd);
      return pool;
    }
    if (errno != EWOULDBLOCK) return IoError("cannot lock " + path, errno);
    if (clock.NowUs() - begin_us >= wait.most_ms * 1000) break;
    if (is_first && wait.on_wait) wait.on_wait(HolderOf(fd));
    std::this_thread::sleep_for(kLockPause);
  }
  return FailedPrecondition("the adapter pool " + directory + " is in use by " + HolderOf(fd));
}

AdapterPool::~AdapterPool() {
  if (lock_fd_ >= 0) close(lock_fd_);
}

Result<std::unique_ptr<AdapterPool>> AdapterPool::Create(const std::string& directory, const PoolSettings& settings) {
  DF_RETURN_IF_ERROR(CheckPoolSettings(settings));
  std::error_code error;
  const bool is_there = fs::exists(directory, error);
  if (is_there && !fs::is_empty(directory, error)) {
    return FailedPrecondition(directory + " is not empty: an adapter pool is made in a directory of its own");
  }
  fs::create_directories(directory + kSlotsName, error);
  if (error) return IoError("cannot create directory " + directory + kSlotsName, error.value());
  DF_ASSIGN_OR_RETURN(std::unique_ptr<AdapterPool> pool, Locked(directory, {}));
  PoolState state;
  state.settings = settings;
  DF_RETURN_IF_ERROR(pool->Commit(std::move(state)));
  return pool;
}

Result<PoolState> AdapterPool::ReadState(const std::string& directory) {
  const std::string path = directory + kStateName;
  std::string former;
  for (;;) {
    const Result<std::string> text = ReadFileBounded(path, kMaxStateBytes);
    if (!text.ok() && text.status().code() == StatusCode::kNotFound) {
      return NotFound(directory + " is no adapter pool: it has no pool.json (deltafold pool create makes one)");
    }
    if (!text.ok()) return text.status();
    Result<PoolState> state = ReadMarked(directory, *text);
    // A slot may have gone with a change made between the two looks: then the file is another by now.
    if ((state.ok() && state->Damaged() == 0) || *text == former) return state;
    former = *text;
  }
}

Result<std::unique_ptr<AdapterPool>> AdapterPool::Open(const std::string& directory, const PoolLockWait& wait) {
  DF_RETURN_IF_ERROR(ReadState(directory).status());  // before anything is written there
  DF_ASSIGN_OR_RETURN(std::unique_ptr<AdapterPool> pool, Locked(directory, wait));
  DF_ASSIGN_OR_RETURN(pool->state_, ReadState(directory));
  RemoveOrphans(directory, pool->state_);
  return pool;
}

Status AdapterPool::Commit(PoolState next, const std::function<void(std::string_view)>& on_step) {
  for (PoolSlot& slot : next.slots) {
    std::erase_if(slot.similarities, [&](const auto& entry) { return !Has(next, entry.first); });
  }
  if (on_step) on_step("replace state");
  DF_RETURN_IF_ERROR(WriteFileAtomically(directory_ + kStateName, DumpPoolState(next)));
  const PoolState former = std::exchange(state_, std::move(next));
  for (const PoolSlot& slot : former.slots) {
    if (Has(state_, slot.name)) continue;
    if (on_step) on_step("remove slot");
    std::error_code ignored;  // else by the next who opens the pool
    fs::remove_all(DirectoryOf(slot.name), ignored);
  }
  return Status::Ok();
}

bool AdapterPool::IsSound(const std::string& name) {
  const auto slot = std::ranges::find(state_.slots, name, &PoolSlot::name);
  DF_CHECK(slot != state_.slots.end());
  if (slot->damage.empty()) slot->damage = DamageOfSlot(directory_, *slot, true);
  return slot->damage.empty();
}

void AdapterPool::CheckContents() {
  for (const PoolSlot& slot : state_.slots) static_cast<void>(IsSound(slot.name));
}

void AdapterPool::Discard(const std::string& slot) {
  const Result<std::string> text = ReadFileBounded(directory_ + kStateName, kMaxStateBytes);
  const Result<PoolState> stored = text.ok() ? ParsePoolState(*text) : text.status();
  if (stored.ok() && Has(*stored, slot)) return;  // renamed, and not known to be durable
  std::error_code ignored;
  fs::remove_all(DirectoryOf(slot), ignored);
}

Status AdapterPool::Remove(const std::string& id) {
  PoolState next = state_;
  if (!DropMember(id, next)) return NotFound("the id " + Quoted(id) + " is not in the pool");
  return Commit(std::move(next));
}

Result<std::vector<std::string>> AdapterPool::EvictSlot(const std::string& slot) {
  PoolState next = state_;
  const auto found = std::ranges::find(next.slots, slot, &PoolSlot::name);
  if (found == next.slots.end()) return NotFound("the pool has no slot " + Quoted(slot));
  std::vector<std::string> ids;
  for (const PoolMember& member : found->members) ids.push_back(member.id);
  next.slots.erase(found);
  ++next.n_evictions;
  DF_RETURN_IF_ERROR(Commit(std::move(next)));
  return ids;
}

void AdapterPool::CountUses(const std::string& id, uint64_t n) {
  for (PoolSlot& slot : state_.slots) {
    if (std::ranges::find(slot.members, id, &PoolMember::id) == slot.members.end()) continue;
    slot.uses = std::min<uint64_t>(slot.uses + std::min<uint64_t>(n, INT64_MAX / 2), INT64_MAX / 2);
  }
}

Status AdapterPool::Flush() { return Commit(state_); }

Status AdapterPool::ChangeSettings(const PoolSettings& settings) {
  DF_RETURN_IF_ERROR(CheckPoolSettings(settings));
  if (settings == state_.settings) return Status::Ok();
  PoolState next = state_;
  next.settings = settings;
  return Commit(std::move(next));
}

}  // namespace df
