#include "store/live_store.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <new>
#include <utility>

namespace df {
namespace {

CacheOptions CacheOptionsFor(const LiveStoreOptions& options) {
  CacheOptions cache;
  cache.budget_bytes = options.budget_bytes;
  cache.max_loads = std::max<size_t>(options.n_load_threads, 1);
  cache.auto_pin = options.auto_pin;
  cache.idle_timeout_us = options.idle_timeout_s * 1'000'000;
  return cache;
}

// Of the readers: what is larger than any of them takes is a fault of the files, not want of room.
Status OfReaders(const Status& refused) {
  return refused.code() == StatusCode::kResourceExhausted ? Unsupported(refused.message()) : refused;
}

VariantStatus StatusOf(std::shared_ptr<const Variant> variant, const CacheEntryView& view, int64_t now_us) {
  VariantStatus status;
  status.variant = std::move(variant);
  status.state = view.state;
  status.failure = view.failure;
  if (view.state == ResidencyState::kFailed) {
    status.retry_in_ms = std::max<int64_t>(0, (view.retry_at_us - now_us) / 1000);
  }
  status.bytes = view.reserved_bytes;
  status.n_leases = view.n_leases;
  status.requests_per_s = view.requests_per_s;
  if (view.last_used_us >= 0) status.last_used_unix = std::time(nullptr) - (now_us - view.last_used_us) / 1'000'000;
  status.load_seconds = static_cast<double>(view.load_us) * 1e-6;
  return status;
}

}  // namespace

Result<std::unique_ptr<LiveStore>> LiveStore::Create(LoadedBase base, LiveStoreOptions options) {
  std::unique_ptr<StateFile> state;
  if (!options.state_file.empty()) {
    std::vector<std::string> warnings;
    DF_ASSIGN_OR_RETURN(state, StateFile::Open(options.state_file, warnings));
    for (const std::string& warning : warnings) {
      if (options.warn) options.warn(warning);
    }
  }
  std::unique_ptr<AdapterSlots> slots;
  if (options.pool) {
    DF_ASSIGN_OR_RETURN(slots, AdapterSlots::Open(options.pool_directory, *options.pool));
  }
  return std::unique_ptr<LiveStore>(
      new LiveStore(std::move(base), std::move(options), std::move(state), std::move(slots)));
}

LiveStore::LiveStore(LoadedBase base, LiveStoreOptions options, std::unique_ptr<StateFile> state,
                     std::unique_ptr<AdapterSlots> slots)
    : base_(std::move(base)),
      options_(std::move(options)),
      set_(ResidentSet::Create(base_.weights, {.cache = CacheOptionsFor(options_),
                                               .load_bytes_per_second = options_.load_bytes_per_second,
                                               .clock = options_.clock,
                                               .readers = options_.readers})),
      tokenizers_(std::make_shared<SharedTokenizers>([set = set_](uint64_t bytes) { return set->Charge(bytes); })),
      registry_(base_.variant->name, base_.variant),
      slots_(std::move(slots)),
      state_(std::move(state)) {}

LiveStore::~LiveStore() {
  {
    const std::scoped_lock lock(watch_mutex_);
    stopping_ = true;
  }
  watch_.notify_all();
  if (watcher_.joinable()) watcher_.join();
  set_->Stop();
}

void LiveStore::Warn(const std::string& text) const {
  if (options_.warn) options_.warn(text);
}

Result<LiveStore::Opened> LiveStore::Open(const std::string& name, const std::string& directory,
                                          const RegisterOptions& options, bool verify) const {
  OpenOptions how = {.verify = verify};
  std::shared_ptr<const VariantSource> files_under;  // while its own are opened
  std::shared_ptr<const Variant> under = base_.variant;
  if (!options.parent.empty()) {
    under = registry_.FindOrNull(options.parent);
    if (under == nullptr || under->IsBase() || under->generation->info().kind != VariantKind::kDelta) {
      return FailedPrecondition("its parent \"" + options.parent + "\" is no registered 1-bit variant");
    }
    how.parent = under->generation;
    files_under = StoredOf(*under).source();
    how.parent_source = files_under.get();
  }
  Opened opened;
  auto source = OpenVariant(*base_.weights, directory, how);
  if (!source.ok()) return OfReaders(source.status());
  opened.source = *std::move(source);
  Status no_room;
  auto variant = DescribeVariant(*under, *opened.source, name, tokenizers_->Loader(no_room));
  if (!variant.ok()) return no_room.ok() ? OfReaders(variant.status()) : variant.status();
  opened.variant = *std::move(variant);
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(directory, error);
  opened.given = !error && std::filesystem::exists(absolute, error) ? absolute.string() : directory;  // else a hub id
  if (!options.given.empty()) opened.given = options.given;
  opened.variant->root = options.root.empty() ? directory : options.root;
  opened.variant->parent = under->IsBase() ? "" : under->name;
  return opened;
}

// Under its name, and on disk, before anybody is told; a failure changes nothing.
Result<std::shared_ptr<const Variant>> LiveStore::Publish(Origin origin, Opened opened,
                                                          const RegisterOptions& options) {
  std::shared_ptr<const Variant> former;  // its end may take locks: it comes after theirs
  const std::scoped_lock lock(changes_);
  const std::string name = opened.variant->name;
  if (registry_.FindOrNull(name) != nullptr && !options.replace) {
    return FailedPrecondition("the name \"" + name + "\" is already loaded: it is taken");
  }
  if (!options.expected_generation.empty()) {
    DF_RETURN_IF_ERROR(registry_.Find(name, options.expected_generation).status());
  }
  DF_RETURN_IF_ERROR(CheckFamily(opened));
  DF_ASSIGN_OR_RETURN(const StoredGenerationRef generation, set_->Adopt(opened.source));
  opened.variant->generation = generation;
  bool is_pinned = options.pinned || IsPinned(name);
  Status kept = is_pinned ? MovePin(name, *generation) : Status::Ok();
  if (!kept.ok() && !options.pinned && registry_.FindOrNull(name) == nullptr) {  // an old wish: better without it
    Warn("\"" + name + "\" cannot be pinned: " + kept.message());
    kept = Status::Ok();
    is_pinned = false;
  }
  if (kept.ok() && origin == Origin::kRuntime) kept = Keep(opened, options);
  if (kept.ok() && origin == Origin::kPooled && options.pinned && state_ != nullptr) {
    kept = state_->SetPinned(name, true);  // the pool keeps the rest
  }
  if (!kept.ok()) {
    ReleaseIfNameless(*opened.variant);  // it may have been there before, without a name, for requests under way
    UndoPin(name);                       // once the other's pin takes no room
    return kept;
  }
  std::shared_ptr<const Variant> variant = std::move(opened.variant);
  DF_ASSIGN_OR_RETURN(
      former, registry_.Put(variant, {.replace = options.replace, .expected_generation = options.expected_generation}));
  pinned_.Set(name, is_pinned);
  if (former != nullptr) ReleaseIfNameless(*former);
  return variant;
}

// Whether one of its names is pinned, `but` not counted.
bool LiveStore::HasPinnedName(const Variant& variant, const std::string& but) const {
  const std::set<std::string> pinned = pinned_.All();
  return std::any_of(pinned.begin(), pinned.end(), [&](const std::string& name) {
    const auto other = registry_.FindOrNull(name);
    return name != but && other != nullptr && other->generation == variant.generation;
  });
}

Status LiveStore::Keep(const Opened& opened, const RegisterOptions& options) {
  if (state_ == nullptr) return Status::Ok();
  const std::string& name = opened.variant->name;
  return state_->Register(name, {opened.given, opened.variant->root, opened.variant->parent}, options.pinned);
}

// What `name` stands for is pinned as the name is: after a change that could not be kept.
void LiveStore::UndoPin(const std::string& name) {
  const auto variant = registry_.FindOrNull(name);
  if (variant == nullptr) return;
  const Status undone = ApplyPin(*variant, IsPinned(name));
  if (!undone.ok()) Warn("\"" + name + "\": " + undone.message());
}

// The pin of `name` to the generation that it will stand for; where that does not fit, all stays as it was.
Status LiveStore::MovePin(const std::string& name, const StoredGeneration& to) {
  const auto former = registry_.FindOrNull(name);
  const bool gives_up = former != nullptr && IsPinned(name) && !HasPinnedName(*former, name);
  return set_->MovePin(gives_up ? &StoredOf(*former) : nullptr, to);
}

Result<std::shared_ptr<const Variant>> LiveStore::RegisterFrom(Origin origin, const std::string& name,
                                                               const std::string& directory,
                                                               const RegisterOptions& options) {
  DF_RETURN_IF_ERROR(registry_.CheckName(name));
  if (const auto taken = registry_.FindOrNull(name); taken != nullptr) {  // before the reading, which takes a while
    if (taken->IsBase()) return FailedPrecondition("the name \"" + name + "\" is already loaded: it is the base's");
    if (!options.replace) return FailedPrecondition("the name \"" + name + "\" is already loaded: it is taken");
  }
  try {
    Result<Opened> opened = Open(name, directory, options, true);
    if (!opened.ok()) return opened.status().Annotate("variant \"" + name + "\"");
    Result<std::shared_ptr<const Variant>> published = Publish(origin, *std::move(opened), options);
    if (!published.ok() && !IsGenerationMismatch(published.status())) {
      return published.status().Annotate("variant \"" + name + "\"");
    }
    return published;
  } catch (const std::bad_alloc&) {
    return Unavailable("variant \"" + name + "\": no memory to open it");
  }
}

// A parent keeps its content while it has children: they would go on with the old one, of which nothing tells any more,
// and be opened on the new one by a restart.
Status LiveStore::CheckFamily(const Opened& opened) const {
  const Variant& variant = *opened.variant;
  const auto parent = registry_.FindOrNull(variant.parent);
  if (!variant.parent.empty() && (parent == nullptr || parent->generation != opened.source->parent)) {
    return InUse("its parent \"" + variant.parent + "\" was changed while it was opened: try again");
  }
  const auto former = registry_.FindOrNull(variant.name);
  const std::string child = registry_.ChildOf(variant.name);
  if (child.empty() || former->generation->info().digest == opened.source->info.digest) return Status::Ok();
  return InUse("\"" + variant.name + "\" is the parent of \"" + child +
               "\": retire that before its parent is replaced");
}

// Its generation loses the pin and the memory unless another name stands for it.
void LiveStore::ReleaseIfNameless(const Variant& variant) {
  const Status unpinned = ApplyPin(variant, false);
  DF_CHECK(unpinned.ok());
  if (!registry_.HasNameFor(*variant.generation)) set_->Retire(StoredOf(variant));
}

// One that could not be restored, or a pin of what is not there.
Status LiveStore::RetireAbsent(const std::string& name) {
  const bool is_stored = state_ != nullptr && state_->state().registrations.contains(name);
  if (!is_stored && !IsPinned(name)) return NotFound("the model \"" + name + "\" cannot be found");
  if (state_ != nullptr) DF_RETURN_IF_ERROR(state_->Retire(name));
  pinned_.Set(name, false);
  return Status::Ok();
}

Status LiveStore::RetireFrom(Origin origin, const std::string& name, const std::string& expected_generation) {
  std::shared_ptr<const Variant> removed;
  const std::scoped_lock lock(changes_);
  const auto found = registry_.Find(name, expected_generation);
  if (!found.ok() && found.status().code() == StatusCode::kNotFound) return RetireAbsent(name);
  DF_RETURN_IF_ERROR(found.status());
  if (const std::string child = registry_.ChildOf(name); !child.empty()) {
    return InUse("\"" + name + "\" is the parent of \"" + child + "\": retire that first");
  }
  // A pin goes with an operator's word. What is away from the watched directory may come back.
  const bool forgets = origin == Origin::kRuntime;
  if (state_ != nullptr && forgets) DF_RETURN_IF_ERROR(state_->Retire(name));
  DF_ASSIGN_OR_RETURN(removed, registry_.Remove(name, expected_generation));
  if (forgets) pinned_.Set(name, false);
  ReleaseIfNameless(*removed);
  return Status::Ok();
}

// A generation is pinned while one of its names is.
Status LiveStore::ApplyPin(const Variant& variant, bool pinned) {
  if (!pinned && HasPinnedName(variant)) return Status::Ok();
  return set_->SetPinned(StoredOf(variant), pinned);
}

Status LiveStore::ChangePin(const std::string& name, const std::string& expected_generation, bool pinned) {
  std::shared_ptr<const Variant> variant;  // null: nothing stands for it, but it may be pinned no more
  const std::scoped_lock lock(changes_);
  auto found = registry_.Find(name, expected_generation);
  const bool is_absent = !found.ok() && found.status().code() == StatusCode::kNotFound;
  if (!is_absent || pinned || !IsPinned(name)) {
    DF_ASSIGN_OR_RETURN(variant, std::move(found));
  }
  if (pinned_.Set(name, pinned) == pinned) return Status::Ok();
  Status changed = variant == nullptr ? Status::Ok() : ApplyPin(*variant, pinned);
  const bool is_applied = changed.ok();
  if (is_applied && state_ != nullptr) changed = state_->SetPinned(name, pinned);
  if (changed.ok()) return changed;
  pinned_.Set(name, !pinned);
  if (is_applied) UndoPin(name);
  return changed;
}

Status LiveStore::Pin(const std::string& name, const std::string& expected_generation) {
  return ChangePin(name, expected_generation, true);
}

Status LiveStore::Unpin(const std::string& name, const std::string& expected_generation) {
  return ChangePin(name, expected_generation, false);
}

Status LiveStore::Prefetch(const std::string& name, const std::string& expected_generation) {
  DF_ASSIGN_OR_RETURN(const auto variant, registry_.Find(name, expected_generation));
  const Status fits = set_->CheckFits(StoredOf(*variant));
  if (!fits.ok()) return fits.Annotate("variant \"" + name + "\"");
  set_->Prefetch(StoredOf(*variant));
  return Status::Ok();
}

Status LiveStore::Evict(const std::string& name, const std::string& expected_generation) {
  DF_ASSIGN_OR_RETURN(const auto variant, registry_.Find(name, expected_generation));
  const Status evicted = set_->Evict(StoredOf(*variant));
  return evicted.ok() ? evicted : evicted.Annotate("variant \"" + name + "\"");
}

ResidentSet::Picture LiveStore::PictureOf(const std::vector<std::shared_ptr<const Variant>>& all) const {
  std::vector<const StoredGeneration*> generations;
  for (const auto& variant : all) {
    if (!variant->IsBase()) generations.push_back(&StoredOf(*variant));
  }
  return set_->PictureOf(generations);
}

std::vector<VariantStatus> LiveStore::Statuses() const {
  std::vector<VariantStatus> rows;
  const auto all = registry_.List();  // the base first
  const ResidentSet::Picture picture = PictureOf(all);
  const auto places = slots_ == nullptr ? std::map<std::string, PoolPlace>() : slots_->Places();
  for (size_t i = 0; i < picture.views.size(); ++i) {
    const std::shared_ptr<const Variant>& variant = all[i + 1];
    VariantStatus& row = rows.emplace_back(StatusOf(variant, picture.views[i], picture.now_us));
    const auto kept_out = picture.kept_out.find(StoredOf(*variant).id());
    if (kept_out != picture.kept_out.end() && row.failure.ok()) row.failure = kept_out->second;
    row.pinned = IsPinned(variant->name);
    row.auto_pinned = picture.auto_pinned.contains(StoredOf(*variant).id());
    if (const auto place = places.find(variant->name); place != places.end()) row.pool = place->second;
  }
  return rows;
}

StoreStats LiveStore::Stats() const {
  const ResidentSet::Totals sums = set_->Sums();
  StoreStats stats = {.budget_bytes = sums.budget_bytes,
                      .reserved_bytes = sums.reserved_bytes,
                      .resident_bytes = sums.resident_bytes,
                      .lookups = sums.stats.lookups,
                      .hits = sums.stats.hits,
                      .loads = sums.stats.loads,
                      .load_failures = sums.stats.load_failures,
                      .load_times = sums.stats.load_times,
                      .evictions = {},
                      .waiting_names = {}};
  if (slots_ != nullptr) stats.pool = slots_->Totals();
  for (const auto& [cause, n] : sums.stats.evictions) stats.evictions[std::string(EvictionCauseName(cause))] = n;
  const auto all = registry_.List();
  const ResidentSet::Picture picture = PictureOf(all);
  for (size_t i = 0; i < picture.views.size(); ++i) {
    const CacheEntryView& view = picture.views[i];
    if (view.wanted && view.state != ResidencyState::kResident) stats.waiting_names.push_back(all[i + 1]->name);
  }
  return stats;
}

// Whether a pin of the start need not be waited for any more. That it cannot be had is said once.
bool LiveStore::IsSettled(const std::string& name) const {
  if (!IsPinned(name)) return true;  // an operator took it back
  std::string why = "nothing of that name is there; it is pinned when it comes";
  if (const auto variant = registry_.FindOrNull(name); variant != nullptr) {
    const CacheEntryView view = set_->View(StoredOf(*variant));
    if (view.state == ResidencyState::kResident) return true;
    if (view.failure.ok()) return false;
    why = "cannot be loaded: " + view.failure.message();
  } else if (!has_looked_) {
    return false;
  }
  if (awaited_.Set(name, false)) Warn("ready without the pinned variant \"" + name + "\": " + why);
  return true;
}

bool LiveStore::Ready() const {
  bool is_ready = true;
  for (const std::string& name : awaited_.All()) {
    const bool is_settled = IsSettled(name);
    if (is_settled) awaited_.Set(name, false);
    is_ready &= is_settled;
  }
  return is_ready;
}

}  // namespace df
