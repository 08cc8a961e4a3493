// Adapters that are loaded while the program runs, under the budget of an adapter pool: the pool decides which
// directory a name stands for, and a merge registers its slot anew for all of its names.
#include <algorithm>
#include <filesystem>
#include <system_error>

#include "format/variant_kind.h"
#include "store/live_store.h"

namespace df {

Result<std::shared_ptr<const Variant>> LiveStore::Register(const std::string& name, const std::string& directory,
                                                           const RegisterOptions& options) {
  if (slots_ != nullptr && options.parent.empty()) {
    const Result<std::string> resolved = ResolveModelDirectory(directory);
    const Result<DirectoryKind> kind = resolved.ok() ? KindOfDirectory(*resolved) : resolved.status();
    if (kind.ok() && *kind == DirectoryKind::kAdapter) return RegisterPooled(name, directory, options);
  }
  if (slots_ != nullptr && slots_->Has(name)) {
    return FailedPrecondition("\"" + name + "\" is an adapter of the pool: unload it first");
  }
  return RegisterFrom(Origin::kRuntime, name, directory, options);
}

Result<std::shared_ptr<const Variant>> LiveStore::RegisterPooled(const std::string& name, const std::string& directory,
                                                                 const RegisterOptions& options) {
  const std::scoped_lock lock(pool_changes_);
  DF_RETURN_IF_ERROR(registry_.CheckName(name));
  const bool is_pooled = slots_->Has(name);
  const auto taken = registry_.FindOrNull(name);
  if (taken != nullptr && !(options.replace && is_pooled)) {
    return FailedPrecondition("the name \"" + name + "\" is already loaded: it is taken" +
                              (options.replace ? " by what is no adapter of the pool" : ""));
  }
  if (!options.expected_generation.empty()) {
    DF_RETURN_IF_ERROR(registry_.Find(name, options.expected_generation).status());
  }
  // Whether it fits this base at all, before it is merged with what does.
  if (const auto opened = Open(name, directory, options, true); !opened.ok()) {
    return opened.status().Annotate("variant \"" + name + "\"");
  }
  RegisterOptions own = options;
  own.root = options.root.empty() ? directory : options.root;
  AdapterSlots::AddOptions add = {
      .replace = options.replace || taken == nullptr, .root = own.root, .requests_per_s = {}, .accept = {}};
  for (const VariantStatus& status : Statuses()) add.requests_per_s[status.variant->name] = status.requests_per_s;
  std::vector<PooledName> moved;
  Status accepted;
  add.accept = [&](const AdapterSlots::Placed& placed) { return accepted = MoveNames(placed, name, own, moved); };
  const auto evicted = slots_->Add(name, directory, add);
  WarnOfDamage();
  if (!evicted.ok()) {
    PutBack(moved);
    return accepted.ok() ? evicted.status().Annotate("variant \"" + name + "\"") : accepted;
  }
  for (const std::string& gone : *evicted) {
    const Status retired = RetireFrom(Origin::kPooled, gone, "");
    if (!retired.ok()) Warn(retired.message());
  }
  return registry_.Find(name, "");
}

// Registers the names of a slot on its directory, `name` last: a pin that moves gives up its room first. `moved` gets
// what they stood for, also when one of them fails.
Status LiveStore::MoveNames(const AdapterSlots::Placed& placed, const std::string& name, const RegisterOptions& options,
                            std::vector<PooledName>& moved) {
  std::vector<std::string> names = placed.names;
  std::erase(names, name);
  names.push_back(name);
  for (const std::string& member : names) {
    const auto former = registry_.FindOrNull(member);
    std::error_code error;
    const bool is_there = former != nullptr && former->generation->info().digest == placed.digest &&
                          std::filesystem::equivalent(former->directory, placed.directory, error) && !error;
    if (is_there && member != name) continue;
    RegisterOptions own = {.root = former == nullptr ? placed.directory : former->root, .replace = true};
    if (member == name) own = options;
    moved.push_back({member, former, IsPinned(member)});
    const auto registered = RegisterFrom(Origin::kPooled, member, placed.directory, own);
    if (registered.ok()) continue;
    moved.pop_back();
    // Nobody is answered by what could not be restored: it keeps nobody else away.
    if (member == name) return registered.status();
    if (former != nullptr) return registered.status().Annotate("variant \"" + name + "\" would share a slot");
    Warn(registered.status().message());
  }
  return Status::Ok();
}

void LiveStore::PutBack(const std::vector<PooledName>& moved) {
  for (auto at = moved.rbegin(); at != moved.rend(); ++at) {
    if (IsPinned(at->name) && !at->was_pinned) {
      const Status unpinned = ChangePin(at->name, "", false);
      if (!unpinned.ok()) Warn(unpinned.message());
    }
    const RegisterOptions back = {.root = at->variant == nullptr ? "" : at->variant->root,
                                  .parent = {},
                                  .replace = true,
                                  .expected_generation = {},
                                  .pinned = at->was_pinned && !IsPinned(at->name)};
    const Status undone = at->variant == nullptr
                              ? RetireFrom(Origin::kPooled, at->name, "")
                              : RegisterFrom(Origin::kPooled, at->name, at->variant->directory, back).status();
    if (!undone.ok()) Warn(undone.message());
  }
}

Status LiveStore::Retire(const std::string& name, const std::string& expected_generation) {
  if (slots_ == nullptr || !slots_->Has(name)) return RetireFrom(Origin::kRuntime, name, expected_generation);
  const std::scoped_lock lock(pool_changes_);
  const std::vector<PooledName> former = {{name, registry_.FindOrNull(name), IsPinned(name)}};
  const Status retired = RetireFrom(Origin::kRuntime, name, expected_generation);
  const bool is_absent = former[0].variant == nullptr && retired.code() == StatusCode::kNotFound;  // not restored
  if (!is_absent) DF_RETURN_IF_ERROR(retired);
  const Status removed = slots_->Remove(name);
  if (!removed.ok() && !is_absent) PutBack(former);
  return removed;
}

// Once of each slot.
void LiveStore::WarnOfDamage() {
  for (const AdapterSlots::Damaged& damaged : slots_->DamagedSlots()) {
    if (!said_damaged_.insert(damaged.slot).second) continue;
    std::string names;
    for (const std::string& name : damaged.names) names += (names.empty() ? "\"" : ", \"") + name + "\"";
    Warn("slot " + damaged.slot + " of the adapter pool is damaged (" + damaged.why + "); it answers for " + names +
         ". Load these again, or stop the server and run deltafold pool evict " + slots_->directory() + " --slot " +
         damaged.slot);
  }
}

bool LiveStore::RestorePool(const RestoreHooks& hooks) {
  if (slots_ == nullptr) return true;
  WarnOfDamage();
  for (const auto& [name, kept] : slots_->Directories()) {
    if (hooks.gives_up && hooks.gives_up()) return false;
    const std::string& root = kept.root.empty() ? kept.directory : kept.root;
    const auto restored = RegisterFrom(Origin::kPooled, name, kept.directory, {.root = root, .replace = true});
    if (!restored.ok()) Warn("not restored, stays in the adapter pool: " + restored.status().message());
  }
  return true;
}

}  // namespace df
