// Adapters that are loaded while the program runs, under the budget of an adapter pool: the pool decides which
// directory a name stands for, and a merge registers its slot anew for all of its names.
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
  if (const auto taken = registry_.FindOrNull(name); taken != nullptr && !(options.replace && is_pooled)) {
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
  std::map<std::string, double> requests_per_s;
  for (const VariantStatus& status : Statuses()) requests_per_s[status.variant->name] = status.requests_per_s;
  auto placed = slots_->Add(name, directory, options.replace, requests_per_s);
  if (!placed.ok()) return placed.status().Annotate("variant \"" + name + "\"");
  for (const std::string& evicted : placed->evicted) {
    const Status retired = RetireFrom(Origin::kPooled, evicted, "");
    if (!retired.ok()) Warn(retired.message());
  }
  RegisterOptions own = options;
  own.root = options.root.empty() ? directory : options.root;
  own.replace = true;
  auto registered = RegisterFrom(Origin::kPooled, name, placed->directory, own);
  if (!registered.ok()) {
    const Status removed = slots_->Remove(name);
    if (!removed.ok()) Warn(removed.message());
  }
  for (const std::string& member : placed->names) {
    if (member == name) continue;
    const auto former = registry_.FindOrNull(member);
    const auto moved = RegisterFrom(Origin::kPooled, member, placed->directory,
                                    {.root = former == nullptr ? placed->directory : former->root, .replace = true});
    if (!moved.ok()) Warn(moved.status().message());  // it goes on with what it had until the next start
  }
  return registered;
}

Status LiveStore::Retire(const std::string& name, const std::string& expected_generation) {
  if (slots_ == nullptr || !slots_->Has(name)) return RetireFrom(Origin::kRuntime, name, expected_generation);
  const std::scoped_lock lock(pool_changes_);
  DF_RETURN_IF_ERROR(registry_.Find(name, expected_generation).status());
  DF_RETURN_IF_ERROR(slots_->Remove(name));
  return RetireFrom(Origin::kRuntime, name, expected_generation);
}

void LiveStore::RestorePool() {
  if (slots_ == nullptr) return;
  for (const auto& [name, directory] : slots_->Directories()) {
    const auto restored = RegisterFrom(Origin::kPooled, name, directory, {.root = directory, .replace = true});
    if (!restored.ok()) Warn("not restored, stays in the adapter pool: " + restored.status().message());
  }
}

}  // namespace df
