#include "store/resident_set.h"

#include <chrono>
#include <new>
#include <utility>

#include "base/heap.h"
#include "base/quiet_thread.h"

namespace df {
namespace {

// What a client may read: the operator's words, with files in them, are in the variant's status.
Status PublicFailure(const CacheGrant& refused) {
  const Status& cause = refused.failure;
  std::string why;
  if (refused.kept_out) {
    why = "what is pinned leaves no room for it";
  } else if (cause.message().starts_with(kGenerationGone)) {
    why = std::string(kGenerationGone) + ": its files were changed in place";
  } else if (cause.code() == StatusCode::kResourceExhausted) {
    why = "there is not enough memory for it";
  } else if (cause.code() == StatusCode::kCancelled || cause.code() == StatusCode::kUnavailable) {
    why = "it is not ready";
  } else {
    why = "its files cannot be read";
  }
  return Unavailable(why);
}

// Whether a load failed for its files, not for want of memory or because it was given up.
bool MayBeDamage(const Status& cause) {
  return cause.code() != StatusCode::kResourceExhausted && cause.code() != StatusCode::kCancelled;
}

// How often the dropper looks without being told: a fraction of the patience while somebody waits, else for idle ones.
constexpr auto kBusyTick = std::chrono::milliseconds(250);
constexpr auto kIdleTick = std::chrono::seconds(1);

}  // namespace

StoredGeneration::~StoredGeneration() { set_->Forget(id_, info_.digest); }
LeaseAttempt StoredGeneration::TryLease(int64_t now_us) const { return set_->TryLease(id_, now_us); }
void StoredGeneration::CountRequest(int64_t now_us) const { set_->CountRequest(id_, now_us); }
void StoredGeneration::EndAsk() const { set_->EndAsk(id_); }

std::shared_ptr<const VariantSource> StoredGeneration::source() const {
  const std::scoped_lock lock(source_mutex_);
  return source_;
}

std::shared_ptr<const VariantSource> StoredGeneration::ExchangeSource(
    std::shared_ptr<const VariantSource> source) const {
  const std::scoped_lock lock(source_mutex_);
  return std::exchange(source_, std::move(source));
}

std::shared_ptr<ResidentSet> ResidentSet::Create(std::shared_ptr<const BaseWeights> base, ResidentSetOptions options) {
  const size_t n_loaders = options.cache.max_loads;
  std::shared_ptr<ResidentSet> set(new ResidentSet(std::move(base), std::move(options)));
  set->StartThreads(n_loaders);
  return set;
}

ResidentSet::ResidentSet(std::shared_ptr<const BaseWeights> base, ResidentSetOptions options)
    : base_(std::move(base)),
      clock_(options.clock ? std::move(options.clock) : std::make_shared<const SteadyClock>()),
      keeps_pace_(options.load_bytes_per_second != 0),
      readers_(std::move(options.readers)),
      cache_(options.cache),
      bucket_(options.load_bytes_per_second) {}

// Some are left where its owner could not be made: no thread, no memory.
ResidentSet::~ResidentSet() {
  if (!threads_.empty()) Stop();
}

void ResidentSet::StartThreads(size_t n_loaders) {
  threads_.reserve(n_loaders + 1);  // one that runs must not be lost for want of memory to keep it
  for (size_t i = 0; i < n_loaders; ++i) {
    const auto context = std::make_shared<KernelContext>(1);  // here: a thread could tell nobody that it has no memory
    context->readers = readers_;
    threads_.push_back(StartQuietThread([this, context] { LoadLoop(*context); }));
  }
  threads_.push_back(StartQuietThread([this] { DropLoop(); }));
}

void ResidentSet::Stop() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  {
    const std::scoped_lock lock(pace_mutex_);
    pace_stopping_ = true;
  }
  pace_.notify_all();
  WakeAll();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void ResidentSet::WakeAll() {
  loaders_.notify_all();
  dropper_.notify_all();
  waiters_.notify_all();
}

void ResidentSet::RaiseBudget(uint64_t budget_bytes) {
  const std::scoped_lock lock(mutex_);
  cache_.RaiseBudget(budget_bytes);
}

Result<StoredGenerationRef> ResidentSet::Adopt(std::shared_ptr<const VariantSource> source) {
  StoredGenerationRef generation;               // outlives the lock: its end takes it
  std::shared_ptr<const VariantSource> former;  // unmapped after it
  const std::scoped_lock lock(mutex_);
  const std::string digest = source->info.digest;
  if (const auto known = by_digest_.find(digest); known != by_digest_.end()) generation = known->second.lock();
  if (generation != nullptr) {
    former = generation->ExchangeSource(std::move(source));
    slots_.at(generation->id()).was_damaged = false;
    cache_.Revive(generation->id());
    return generation;
  }
  const auto* parent = static_cast<const StoredGeneration*>(source->parent.get());
  const CacheContent content = {.bytes = source->info.resident_bytes,
                                .parent = parent == nullptr ? kNoCacheId : parent->id()};
  DF_RETURN_IF_ERROR(cache_.CheckFits(content));
  const CacheId id = cache_.Add(content);
  generation = std::make_shared<const StoredGeneration>(shared_from_this(), id, std::move(source));
  slots_[id].generation = by_digest_[digest] = generation;
  return generation;
}

void ResidentSet::Retire(const StoredGeneration& generation) {
  {
    const std::scoped_lock lock(mutex_);
    cache_.Retire(generation.id());
  }
  WakeAll();
}

void ResidentSet::Forget(CacheId id, const std::string& digest) {
  {
    const std::scoped_lock lock(mutex_);
    cache_.Forget(id);
    if (!cache_.Knows(id)) slots_.erase(id);
    const auto known = by_digest_.find(digest);
    if (known != by_digest_.end() && known->second.expired()) by_digest_.erase(known);
  }
  dropper_.notify_all();
}

Status ResidentSet::SetPinned(const StoredGeneration& generation, bool pinned) {
  Status set;
  bool reopened = false;
  {
    const std::scoped_lock lock(mutex_);
    set = cache_.SetPinned(generation.id(), pinned, clock_->NowUs());
    reopened = cache_.TakeReopened();
  }
  WakeAll();
  if (reopened) Wake();
  return set;
}

Status ResidentSet::MovePin(const StoredGeneration* from, const StoredGeneration& to) {
  Status moved;
  bool reopened = false;
  {
    const std::scoped_lock lock(mutex_);
    const int64_t now_us = clock_->NowUs();
    if (from != nullptr) DF_CHECK(cache_.SetPinned(from->id(), false, now_us).ok());
    moved = cache_.SetPinned(to.id(), true, now_us);
    if (!moved.ok() && from != nullptr) DF_CHECK(cache_.SetPinned(from->id(), true, now_us).ok());
    reopened = cache_.TakeReopened();
  }
  WakeAll();
  if (reopened) Wake();
  return moved;
}

void ResidentSet::Prefetch(const StoredGeneration& generation) {
  {
    const std::scoped_lock lock(mutex_);
    cache_.Prefetch(generation.id(), clock_->NowUs());
  }
  WakeAll();
}

Status ResidentSet::Evict(const StoredGeneration& generation) {
  Status evicted;
  {
    const std::scoped_lock lock(mutex_);
    evicted = cache_.Evict(generation.id(), clock_->NowUs());
  }
  WakeAll();
  return evicted;
}

Status ResidentSet::CheckFits(const StoredGeneration& generation) const {
  const std::scoped_lock lock(mutex_);
  return cache_.CheckFits(generation.id());
}

Status ResidentSet::LoadBlocking(const StoredGeneration& generation) {
  std::unique_lock lock(mutex_);
  const CacheId id = generation.id();
  // A load that was asked for before may have failed by now: asking again would only repeat it later.
  if (cache_.View(id, clock_->NowUs()).failure.ok()) {
    cache_.Prefetch(id, clock_->NowUs());
    WakeAll();
  }
  for (;;) {
    DF_RETURN_IF_ERROR(cache_.CheckFits(id));
    const CacheEntryView view = cache_.View(id, clock_->NowUs());
    if (view.state == ResidencyState::kResident) return Status::Ok();
    if (stopping_) return Unavailable("the store is shutting down");
    if (view.state != ResidencyState::kLoading && !view.queued) {
      if (!view.failure.ok()) return view.failure;
      cache_.Prefetch(id, clock_->NowUs());  // evicted for another before this thread saw it
      WakeAll();
    }
    waiters_.wait(lock);
  }
}

Result<std::shared_ptr<void>> ResidentSet::Charge(uint64_t bytes) {
  const auto id = std::make_shared<CacheId>(kNoCacheId);
  std::shared_ptr<void> charge(nullptr, [set = shared_from_this(), id](void*) {
    if (*id != kNoCacheId) set->EndCharge(*id);
  });
  std::unique_lock lock(mutex_);  // gone before the charge, whose end takes it
  DF_RETURN_IF_ERROR(cache_.CheckCharge(bytes));
  *id = cache_.Add({.bytes = bytes, .is_charge = true});
  DF_CHECK(cache_.SetPinned(*id, true, clock_->NowUs()).ok());  // it fits
  WakeAll();
  const auto is_held = [&] { return cache_.View(*id, clock_->NowUs()).state == ResidencyState::kResident; };
  waiters_.wait(lock, [&] { return stopping_ || is_held(); });
  if (!is_held()) return Unavailable("the store is shutting down");
  return charge;
}

void ResidentSet::EndCharge(CacheId id) {
  {
    const std::scoped_lock lock(mutex_);
    cache_.Forget(id);
  }
  WakeAll();
}

LeaseAttempt ResidentSet::TryLease(CacheId id, int64_t now_us) {
  LeaseAttempt attempt;
  {
    const std::scoped_lock lock(mutex_);
    CacheGrant grant = cache_.TryLease(id, now_us);
    if (grant.granted) {
      attempt.lease = {slots_.at(id).weights, [set = shared_from_this(), id] { set->EndLease(id); }};
      return attempt;
    }
    if (!grant.failure.ok()) {
      attempt.failure = PublicFailure(grant);
      return attempt;
    }
    if (stopping_) attempt.failure = Unavailable("shutting down");
  }
  loaders_.notify_one();
  dropper_.notify_one();
  return attempt;
}

void ResidentSet::EndLease(CacheId id) {
  {
    const std::scoped_lock lock(mutex_);
    cache_.EndLease(id, clock_->NowUs());
  }
  dropper_.notify_one();
}

void ResidentSet::CountRequest(CacheId id, int64_t now_us) {
  {
    const std::scoped_lock lock(mutex_);
    cache_.CountRequest(id, now_us);
  }
  loaders_.notify_one();
  dropper_.notify_one();
}

// The dropper looks: what was closed for him takes leases again.
void ResidentSet::EndAsk(CacheId id) {
  {
    const std::scoped_lock lock(mutex_);
    cache_.EndAsk(id, clock_->NowUs());
  }
  dropper_.notify_one();
}

CacheEntryView ResidentSet::View(const StoredGeneration& generation) const {
  const std::scoped_lock lock(mutex_);
  return cache_.View(generation.id(), clock_->NowUs());
}

ResidentSet::Picture ResidentSet::PictureOf(const std::vector<const StoredGeneration*>& generations) const {
  Picture picture;
  const std::scoped_lock lock(mutex_);
  picture.now_us = clock_->NowUs();
  picture.auto_pinned = cache_.AutoPinned(picture.now_us);
  picture.kept_out = cache_.KeptOut();
  for (const StoredGeneration* generation : generations) {
    picture.views.push_back(cache_.View(generation->id(), picture.now_us));
  }
  return picture;
}

ResidentSet::Totals ResidentSet::Sums() const {
  const std::scoped_lock lock(mutex_);
  return {.stats = cache_.stats(),
          .budget_bytes = cache_.budget_bytes(),
          .reserved_bytes = cache_.reserved_bytes(),
          .resident_bytes = cache_.resident_bytes(),
          .charged_bytes = cache_.charged_bytes()};
}

void ResidentSet::SetWaker(std::function<void()> wake) {
  const std::scoped_lock lock(wake_mutex_);
  wake_ = std::move(wake);
}

void ResidentSet::SetBusyProbe(std::function<bool()> is_busy) {
  const std::scoped_lock lock(pace_mutex_);
  is_busy_ = std::move(is_busy);
}

void ResidentSet::Wake() {
  const std::scoped_lock lock(wake_mutex_);
  if (wake_) wake_();
}

// Sleeps as long as the rate asks for. The probe runs under the lock: whoever takes it away knows that it has ended.
Status ResidentSet::Pace(size_t bytes) {
  std::unique_lock lock(pace_mutex_);
  if (keeps_pace_ && (!is_busy_ || is_busy_())) {
    const int64_t delay_us = bucket_.Spend(bytes, clock_->NowUs());
    pace_.wait_for(lock, std::chrono::microseconds(delay_us), [this] { return pace_stopping_; });
  }
  return pace_stopping_ ? Cancelled("the store is shutting down") : Status::Ok();
}

void ResidentSet::LoadLoop(KernelContext& context) {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    const std::optional<CacheId> id = cache_.NextLoad(clock_->NowUs());
    if (id && !slots_.contains(*id)) {  // a charge
      cache_.LoadDone(*id, cache_.View(*id, clock_->NowUs()).reserved_bytes, clock_->NowUs());
      WakeAll();
    } else if (id) {
      LoadOne(context, *id, lock);
    } else {
      loaders_.wait_for(lock, kIdleTick);  // a pin whose load failed is tried again without anybody's asking
    }
  }
}

// Files that failed are opened again where they were found: a mapping of which a page could not be read, or whose file
// was cut short for a moment, stays damaged whatever the disk holds now, and good files may have been put in their
// place.
Result<std::shared_ptr<const VariantWeights>> ResidentSet::Pack(KernelContext& context,
                                                                const StoredGeneration& generation, bool was_damaged,
                                                                PackOptions options) const {
  std::shared_ptr<const VariantSource> source = generation.source();
  if (was_damaged) {
    const auto* parent = static_cast<const StoredGeneration*>(generation.parent().get());
    const auto parent_source = parent == nullptr ? nullptr : parent->source();
    try {
      const auto fresh =
          OpenVariant(*base_, source->directory,
                      {.parent = generation.parent(), .parent_source = parent_source.get(), .verify = false});
      if (fresh.ok() && (*fresh)->info.digest == generation.info().digest) source = *fresh;  // else another generation
    } catch (const std::bad_alloc&) {
      return ResourceExhausted("no memory to open its files again");
    }
  }
  if (source->verified) options.first_reading = false;
  auto weights = PackVariant(context, *base_, *source, options);
  if (weights.ok() && was_damaged) generation.ExchangeSource(std::move(source));
  return weights;
}

void ResidentSet::LoadOne(KernelContext& context, CacheId id, std::unique_lock<std::mutex>& lock) {
  const Slot& slot = slots_.at(id);
  StoredGenerationRef generation = slot.generation.lock();
  const bool was_damaged = slot.was_damaged;
  PackOptions options = {.parent = nullptr, .first_reading = !slot.was_read, .progress = {}};
  if (generation != nullptr && generation->parent() != nullptr) {
    options.parent = slots_.at(static_cast<const StoredGeneration&>(*generation->parent()).id()).weights;
  }
  lock.unlock();
  options.progress = [this](size_t bytes) { return Pace(bytes); };
  Result<std::shared_ptr<const VariantWeights>> weights = Cancelled("nobody refers to it any more");
  if (generation != nullptr) weights = Pack(context, *generation, was_damaged, options);
  generation.reset();  // its end takes the lock
  options.parent.reset();
  lock.lock();
  Slot& loaded = slots_.at(id);
  loaded.was_damaged = !weights.ok() && MayBeDamage(weights.status());
  if (weights.ok()) {
    loaded.was_read = true;
    cache_.LoadDone(id, (*weights)->bytes, clock_->NowUs());
    loaded.weights = *std::move(weights);
  } else {
    cache_.LoadFailed(id, weights.status(), clock_->NowUs());
    if (!cache_.Knows(id)) slots_.erase(id);
  }
  WakeAll();
  lock.unlock();
  Wake();
  lock.lock();
}

void ResidentSet::DropLoop() {
  std::unique_lock lock(mutex_);
  bool has_dropped = false;
  while (!stopping_) {
    const bool is_wanted = cache_.AnyWanted(clock_->NowUs());
    const std::optional<CacheId> id = cache_.NextDrop(clock_->NowUs());
    if (cache_.TakeReopened()) {
      lock.unlock();
      Wake();
      lock.lock();
    }
    if (id) {
      std::shared_ptr<const VariantWeights> weights;  // none of a charge
      if (const auto slot = slots_.find(*id); slot != slots_.end()) weights = std::move(slot->second.weights);
      lock.unlock();
      weights.reset();
      lock.lock();
      cache_.Dropped(*id, clock_->NowUs());
      if (!cache_.Knows(*id)) slots_.erase(*id);
      loaders_.notify_all();
      waiters_.notify_all();
      has_dropped = true;
      continue;
    }
    if (has_dropped) {
      lock.unlock();
      ReturnFreeMemory();  // small parts leave holes in the heaps
      lock.lock();
      has_dropped = false;
      continue;
    }
    const bool timed_out = dropper_.wait_for(lock, is_wanted ? kBusyTick : kIdleTick) == std::cv_status::timeout;
    if (!timed_out || !cache_.AnyWanted(clock_->NowUs())) continue;
    // Whoever still waits asks again; whoever does not is forgotten.
    lock.unlock();
    Wake();
    lock.lock();
  }
}

}  // namespace df
