#include "store/adapter_slots.h"

#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

namespace df {
namespace {

namespace fs = std::filesystem;

double Share(double part, double whole) { return whole > 0 ? part / whole : 0; }

Result<std::string> MakeTemporary() {
  std::error_code error;
  const fs::path parent = fs::temp_directory_path(error);
  if (error) return IoError("no directory for the adapter pool", error.value());
  std::string path = parent.string() + "/deltafold-pool-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) return IoError("cannot make " + path, errno);
  return path;
}

}  // namespace

Result<std::unique_ptr<AdapterSlots>> AdapterSlots::Open(const std::string& directory, const PoolSettings& settings) {
  DF_RETURN_IF_ERROR(CheckPoolSettings(settings));  // before anything is made
  std::string temporary;
  if (directory.empty()) {
    DF_ASSIGN_OR_RETURN(temporary, MakeTemporary());
  }
  const std::string& path = directory.empty() ? temporary : directory;
  std::unique_ptr<AdapterPool> pool;
  std::error_code error;
  if (fs::exists(path + "/pool.json", error)) {
    DF_ASSIGN_OR_RETURN(pool, AdapterPool::Open(path));
    pool->CheckContents();
    DF_RETURN_IF_ERROR(pool->ChangeSettings(settings));
  } else {
    DF_ASSIGN_OR_RETURN(pool, AdapterPool::Create(path, settings));
  }
  return std::unique_ptr<AdapterSlots>(new AdapterSlots(std::move(pool), std::move(temporary)));
}

AdapterSlots::~AdapterSlots() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

std::shared_ptr<const PoolState> AdapterSlots::State() const {
  const std::scoped_lock lock(mutex_);
  return shown_;
}

void AdapterSlots::Show() {
  auto state = std::make_shared<const PoolState>(pool_->state());
  const std::scoped_lock lock(mutex_);
  shown_ = std::move(state);
}

Result<std::vector<std::string>> AdapterSlots::Add(const std::string& name, const std::string& directory,
                                                   const AddOptions& options) {
  const std::scoped_lock lock(changes_);
  PoolAddOptions add = {.replace = options.replace, .root = options.root};
  add.use_of = [&](const PoolSlot& slot) {
    double sum = 0;
    for (const PoolMember& member : slot.members) {
      const auto found = options.requests_per_s.find(member.id);
      if (found != options.requests_per_s.end()) sum += found->second;
    }
    return sum;
  };
  add.accept = [&](const PoolAdded&, const std::string& placed_in, const PoolSlot& slot) {
    Placed placed = {.directory = placed_in, .digest = slot.digest, .names = {}};
    for (const PoolMember& member : slot.members) placed.names.push_back(member.id);
    return options.accept ? options.accept(placed) : Status::Ok();
  };
  ThreadPool one(1);  // the others are the engine's
  Result<PoolAdded> added = pool_->Add(one, name, directory, add);
  Show();
  if (!added.ok()) return added.status();
  return std::move(added->evicted_ids);
}

Status AdapterSlots::Remove(const std::string& name) {
  const std::scoped_lock lock(changes_);
  const Status removed = pool_->Remove(name);
  Show();
  return removed;
}

std::map<std::string, AdapterSlots::Kept> AdapterSlots::Directories() const {
  std::map<std::string, Kept> directories;
  for (const PoolSlot& slot : State()->slots) {
    if (!slot.damage.empty()) continue;
    for (const PoolMember& member : slot.members) {
      directories[member.id] = {.directory = pool_->DirectoryOf(slot.name), .root = member.root};
    }
  }
  return directories;
}

std::vector<AdapterSlots::Damaged> AdapterSlots::DamagedSlots() const {
  std::vector<Damaged> damaged;
  for (const PoolSlot& slot : State()->slots) {
    if (slot.damage.empty()) continue;
    damaged.push_back({.slot = slot.name, .why = slot.damage, .names = {}});
    for (const PoolMember& member : slot.members) damaged.back().names.push_back(member.id);
  }
  return damaged;
}

std::map<std::string, PoolPlace> AdapterSlots::Places() const {
  std::map<std::string, PoolPlace> places;
  const std::shared_ptr<const PoolState> state = State();
  for (const PoolSlot& slot : state->slots) {
    std::vector<std::string> names;
    for (const PoolMember& member : slot.members) names.push_back(member.id);
    for (const PoolMember& member : slot.members) {
      places[member.id] = {.slot = slot.name,
                           .members = names,
                           .error_at_most = Share(member.distance_at_most, member.norm),
                           .error_estimate = Share(member.distance_estimate, member.norm)};
    }
  }
  return places;
}

PoolTotals AdapterSlots::Totals() const {
  const std::shared_ptr<const PoolState> state = State();
  PoolTotals totals = {.slots = state->slots.size(),
                       .members = 0,
                       .budget_bytes = state->settings.budget_bytes,
                       .used_bytes = state->UsedBytes(),
                       .merges = state->n_merges,
                       .refusals = state->n_refusals,
                       .evictions = state->n_evictions};
  for (const PoolSlot& slot : state->slots) totals.members += slot.members.size();
  return totals;
}

}  // namespace df
