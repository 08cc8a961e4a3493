// Names of the simulated store: what LiveStore does under its lock of changes, step by step.
#include <algorithm>
#include <utility>

#include "store.h"

namespace df::simulation {

Result<Source> Store::Open(const Content& content, const std::string& parent_name) const {
  Source source = {.digest = content.digest,
                   .bytes = content.bytes,
                   .is_broken = content.is_broken,
                   .has_nan = content.has_nan,
                   .parent = nullptr,
                   .parent_name = parent_name};
  if (parent_name.empty()) return source;
  const auto parent = registry_.FindOrNull(parent_name);
  if (parent == nullptr || parent->IsBase() || Of(*parent).source().parent != nullptr) {
    return FailedPrecondition("its parent \"" + parent_name + "\" is no registered 1-bit variant");
  }
  source.parent = parent->generation;
  source.digest += "+" + source.parent->info().digest;
  return source;
}

Result<Store::GenerationPtr> Store::Adopt(Source source) {
  auto& known = by_digest_[source.digest];
  if (GenerationPtr generation = known.lock()) {
    cache_.Revive(generation->id());
    books_.at(generation->id()).n_failures = 0;  // a failure is forgotten: no backing off from it
    return generation;
  }
  const auto* parent = static_cast<const SimulatedGeneration*>(source.parent.get());
  const CacheContent content = {.bytes = source.bytes, .parent = parent == nullptr ? kNoCacheId : parent->id()};
  DF_RETURN_IF_ERROR(cache_.CheckFits(content));
  const CacheId id = cache_.Add(content);
  if (books_.contains(id)) environment_.verdict.Break("I1", "id " + std::to_string(id) + " was given away twice");
  books_[id] = {.digest = source.digest, .parent = content.parent, .bytes = source.bytes};
  has_parents_ |= parent != nullptr;
  most_generations_ = std::max(most_generations_, books_.size());
  auto generation = std::make_shared<const SimulatedGeneration>(*this, id, std::move(source));
  generations_[id] = known = generation;
  return generation;
}

Status Store::Publish(const std::string& name, Source source, const PutOptions& options, bool pinned) {
  std::shared_ptr<const Variant> former;
  if (registry_.FindOrNull(name) != nullptr && !options.replace) return FailedPrecondition("the name is taken");
  if (!options.expected_generation.empty()) {
    DF_RETURN_IF_ERROR(registry_.Find(name, options.expected_generation).status());
  }
  DF_RETURN_IF_ERROR(CheckFamily(name, source));
  auto variant = std::make_shared<Variant>();
  variant->name = name;
  variant->parent = source.parent_name;
  DF_ASSIGN_OR_RETURN(const GenerationPtr generation, Adopt(std::move(source)));
  variant->generation = generation;
  const bool is_pinned = pinned || IsPinned(name);
  if (is_pinned) {
    if (Status moved = MovePin(name, *generation); !moved.ok()) {
      RetireIfNameless(generation);  // it may have been there, without a name, for requests under way
      return moved;
    }
  }
  DF_ASSIGN_OR_RETURN(former, registry_.Put(std::move(variant), options));
  pinned_[name] = is_pinned;
  if (former != nullptr) ReleaseIfNameless(*former);
  return Status::Ok();
}

bool Store::IsPinned(const std::string& name) const {
  const auto pin = pinned_.find(name);
  return pin != pinned_.end() && pin->second;
}

bool Store::HasPinnedName(const Variant& variant) const {
  const auto all = registry_.List();
  return std::any_of(all.begin(), all.end(), [&](const auto& other) {
    return other->generation == variant.generation && IsPinned(other->name);
  });
}

Status Store::ApplyPin(const Variant& variant, bool pinned) {
  if (!pinned && HasPinnedName(variant)) return Status::Ok();
  Status set = cache_.SetPinned(Of(variant).id(), pinned, CacheNow());
  if (cache_.TakeReopened()) wake_();
  NotifyLoaders();
  NotifyDropper();
  return set;
}

Status Store::MovePin(const std::string& name, const SimulatedGeneration& to) {
  const auto former = registry_.FindOrNull(name);
  const bool was_pinned = std::exchange(pinned_[name], false);
  if (former != nullptr) DF_RETURN_IF_ERROR(ApplyPin(*former, false));
  Status moved = cache_.SetPinned(to.id(), true, CacheNow());
  if (cache_.TakeReopened()) wake_();
  NotifyLoaders();
  if (moved.ok()) return moved;
  pinned_[name] = was_pinned;
  if (was_pinned) DF_RETURN_IF_ERROR(ApplyPin(*former, true));
  return moved;
}

bool Store::IsParent(const std::string& name) const {
  const auto all = registry_.List();
  return std::any_of(all.begin(), all.end(), [&](const auto& other) { return other->parent == name; });
}

Status Store::CheckFamily(const std::string& name, const Source& source) const {
  const auto parent = registry_.FindOrNull(source.parent_name);
  if (!source.parent_name.empty() && (parent == nullptr || parent->generation != source.parent)) {
    return FailedPrecondition("its parent was changed while it was opened");
  }
  if (!IsParent(name) || registry_.FindOrNull(name)->generation->info().digest == source.digest) return Status::Ok();
  return FailedPrecondition("it is the parent of other variants: retire them before it is replaced");
}

void Store::ReleaseIfNameless(const Variant& variant) {
  DF_CHECK(ApplyPin(variant, false).ok());
  RetireIfNameless(variant.generation);
}

void Store::RetireIfNameless(const GenerationRef& generation) {
  for (const auto& other : registry_.List()) {
    if (other->generation == generation) return;
  }
  cache_.Retire(IdOf(*generation));
  NotifyDropper();
}

Status Store::Retire(const std::string& name, const std::string& expected_generation) {
  std::shared_ptr<const Variant> removed;
  const auto found = registry_.Find(name, expected_generation);
  if (!found.ok()) return found.status();
  if (IsParent(name)) return FailedPrecondition("it is the parent of other variants: retire them first");
  DF_ASSIGN_OR_RETURN(removed, registry_.Remove(name, expected_generation));
  pinned_.erase(name);
  ReleaseIfNameless(*removed);
  return Status::Ok();
}

Status Store::SetPinned(const std::string& name, const std::string& expected_generation, bool pinned) {
  DF_ASSIGN_OR_RETURN(const auto variant, registry_.Find(name, expected_generation));
  if (pinned_[name] == pinned) return Status::Ok();
  pinned_[name] = pinned;
  Status changed = ApplyPin(*variant, pinned);
  if (!changed.ok()) pinned_[name] = !pinned;
  return changed;
}

Status Store::Prefetch(const std::string& name, const std::string& expected_generation) {
  DF_ASSIGN_OR_RETURN(const auto variant, registry_.Find(name, expected_generation));
  cache_.Prefetch(Of(*variant).id(), CacheNow());
  NotifyLoaders();
  return Status::Ok();
}

Status Store::Evict(const std::string& name, const std::string& expected_generation) {
  DF_ASSIGN_OR_RETURN(const auto variant, registry_.Find(name, expected_generation));
  const CacheId id = Of(*variant).id();
  Status evicted = cache_.Evict(id, CacheNow());
  if (evicted.ok() && books_.at(id).is_resident) books_.at(id).is_evicted = true;
  NotifyDropper();
  return evicted;
}

}  // namespace df::simulation
