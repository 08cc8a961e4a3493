// Generations, loads and drops of the simulated store: what ResidentSet and its threads do.
#include "store.h"

#include <algorithm>
#include <utility>

namespace df::simulation {
namespace {

// As in store/resident_set.cc.
constexpr int64_t kBusyTickUs = 250'000, kIdleTickUs = 1'000'000;
constexpr int64_t kLongestWakeUs = 300;   // until a thread that was notified looks
constexpr int64_t kLongestDropUs = 2000;  // of giving memory back

std::shared_ptr<const Variant> MakeBase() {
  auto base = std::make_shared<Variant>();
  base->name = "base";
  return base;
}

}  // namespace

SimulatedGeneration::SimulatedGeneration(Store& store, CacheId id, Source source)
    : store_(store), id_(id), source_(std::move(source)) {
  info_.digest = source_.digest;
  info_.resident_bytes = source_.bytes;
}
SimulatedGeneration::~SimulatedGeneration() { store_.Forget(id_); }
LeaseAttempt SimulatedGeneration::TryLease(int64_t now_us) const { return store_.TryLease(id_, now_us); }
void SimulatedGeneration::CountRequest(int64_t now_us) const { store_.CountRequest(id_, now_us); }
void SimulatedGeneration::EndAsk() const { store_.EndAsk(id_); }

Store::Store(Environment& environment, std::function<void()> wake)
    : environment_(environment),
      wake_(std::move(wake)),
      registry_("base", MakeBase()),
      cache_(environment.plan.cache),
      loads_(environment.plan.seed, Stream::kLoads),
      threads_(environment.plan.seed, Stream::kThreads) {
  environment_.timeline.In(kIdleTickUs, [this] { TickLoaders(); });
  environment_.timeline.In(kBusyTickUs, [this] { TickDropper(); });
}

// Generations end while all books are there.
Store::~Store() {
  for (const auto& variant : registry_.List()) {
    if (!variant->IsBase()) DF_CHECK(registry_.Remove(variant->name, "").ok());
  }
}

// A thread may have read the clock before it got the lock.
int64_t Store::StaleUs() { return threads_.PerMille(100) ? threads_.Between<int64_t>(0, 500) : 0; }

int64_t Store::longest_lease_us() const {
  int64_t longest_us = longest_lease_us_;
  for (const auto& [serial, since_us] : leased_since_us_)
    longest_us = std::max(longest_us, environment_.now_us() - since_us);
  return longest_us;
}

bool Store::IsOpen(CacheId id) const {
  return books_.at(id).is_resident && !cache_.View(id, environment_.now_us()).draining;
}

bool Store::HasOpen(const std::string& digest) const {
  return std::any_of(books_.begin(), books_.end(),
                     [&](const auto& one) { return one.second.digest == digest && IsOpen(one.first); });
}

bool Store::IsPinned(CacheId id) const {
  const auto all = registry_.List();
  return std::any_of(all.begin(), all.end(), [&](const auto& variant) {
    return !variant->IsBase() && Of(*variant).id() == id && IsPinned(variant->name);
  });
}

// By a request that is there, or by an operator who pinned it.
bool Store::IsWanted(CacheId id, const Books& books) const {
  const bool waits = books.wanted_us >= 0 && latest_us_ - books.wanted_us < environment_.plan.cache.interest_us;
  return !books.is_resident && (waits || IsPinned(id));
}

// At most: what is free, what leaves, and what nobody leases.
uint64_t Store::BytesAtOnce() const {
  uint64_t bytes = cache_.budget_bytes() - cache_.reserved_bytes();
  for (const auto& [id, books] : books_) {
    const bool goes = cache_.View(id, latest_us_).leaving || (books.is_resident && books.n_leases == 0);
    if (goes) bytes += books.bytes;
  }
  return bytes;
}

LeaseAttempt Store::TryLease(CacheId id, int64_t now_us) {
  Books& books = books_.at(id);
  CacheGrant grant = cache_.TryLease(id, CacheTime(now_us));
  if (!grant.granted && grant.failure.ok()) {
    if (books.asked_us < 0 || now_us - books.last_asked_us >= environment_.plan.cache.interest_us) {
      books.asked_us = now_us;
      books.asked_awake_us = environment_.awake_us();
    }
    books.last_asked_us = books.wanted_us = now_us;
    NotifyLoaders();
    NotifyDropper();
    return {};
  }
  const int64_t asked_us = std::exchange(books.asked_us, -1);
  books.wanted_us = -1;
  if (!grant.granted) return {.lease = {}, .failure = grant.failure};
  if (asked_us >= 0) {
    const int64_t there_us = books.loaded_us >= asked_us ? books.loaded_us : now_us;
    longest_grant_us_ = std::max(longest_grant_us_, there_us - asked_us);
  }
  if (!books.is_resident || !weights_.contains(id)) {
    environment_.verdict.Break("I9", "a lease of " + books.digest + ", whose weights are not there");
    return {.lease = {}, .failure = Unavailable("broken")};
  }
  ++books.n_leases;
  ++n_leases_;
  leased_since_us_.emplace(++n_granted_, now_us);
  return {.lease = {weights_.at(id), [this, id, serial = n_granted_] { EndLease(id, serial); }}, .failure = {}};
}

void Store::EndLease(CacheId id, uint64_t serial) {
  const auto lease = leased_since_us_.extract(serial);
  longest_lease_us_ = std::max(longest_lease_us_, environment_.now_us() - lease.mapped());
  --books_.at(id).n_leases;
  books_.at(id).used_us = environment_.now_us();
  --n_leases_;
  ++n_ended_leases_;
  cache_.EndLease(id, CacheNow());
  NotifyDropper();
}

void Store::CountRequest(CacheId id, int64_t now_us) {
  if (!IsOpen(id)) books_.at(id).wanted_us = now_us;
  cache_.CountRequest(id, CacheTime(now_us));
  NotifyLoaders();
  NotifyDropper();
}

void Store::EndAsk(CacheId id) {
  books_.at(id).asked_us = books_.at(id).wanted_us = -1;
  cache_.EndAsk(id, CacheNow());
  NotifyDropper();
}

void Store::Forget(CacheId id) {
  Books& books = books_.at(id);
  books.is_forgotten = true;
  books.asked_us = books.wanted_us = -1;
  cache_.Forget(id);
  generations_.erase(id);
  const auto known = by_digest_.find(books.digest);
  if (known != by_digest_.end() && known->second.expired()) by_digest_.erase(known);
  if (!cache_.Knows(id)) books_.erase(id);
  NotifyDropper();
}

void Store::NotifyLoaders() {
  if (std::exchange(loaders_look_, true)) return;
  environment_.timeline.In(threads_.Between<int64_t>(0, kLongestWakeUs), [this] {
    loaders_look_ = false;
    LookForLoads();
  });
}

void Store::NotifyDropper() {
  if (std::exchange(dropper_looks_, true)) return;
  environment_.timeline.In(threads_.Between<int64_t>(0, kLongestWakeUs), [this] {
    dropper_looks_ = false;
    LookForDrops();
  });
}

void Store::TickLoaders() {
  if (!is_ticking_) return;
  LookForLoads();
  environment_.timeline.In(kIdleTickUs, [this] { TickLoaders(); });
}

void Store::TickDropper() {
  if (!is_ticking_) return;
  LookForDrops();
  CheckProgress();
  const bool is_wanted = cache_.AnyWanted(environment_.now_us());
  if (is_wanted) wake_();
  environment_.timeline.In(is_wanted ? kBusyTickUs : kIdleTickUs, [this] { TickDropper(); });
}

void Store::LookForLoads() {
  while (environment_.verdict.ok()) {
    const std::optional<CacheId> id = cache_.NextLoad(CacheNow());
    if (!id) return CheckLoadersIdle();
    CheckLoadStarts(*id);
    if (environment_.verdict.ok()) StartLoad(*id);
  }
}

Store::Fault Store::DrawFault(const SimulatedGeneration& generation) {
  const Plan& plan = environment_.plan;
  ++n_loads_;
  if (generation.source().is_broken) return Fault::kCorrupt;
  if (is_healthy_) return Fault::kNone;
  if (n_loads_ == plan.refused_load) return Fault::kNoMemory;
  if (!loads_.PerMille(plan.load_fault_per_mille)) return Fault::kNone;
  return static_cast<Fault>(loads_.Between(static_cast<int>(Fault::kUnreadable), static_cast<int>(Fault::kFewerBytes)));
}

std::shared_ptr<const VariantWeights> Store::Allocate(const std::string& digest, uint64_t bytes) {
  held_bytes_ += bytes;
  auto weights = std::make_unique<VariantWeights>();
  weights->digest = digest;
  weights->bytes = bytes;
  return {weights.release(), [this](const VariantWeights* freed) {
            held_bytes_ -= freed->bytes;
            delete freed;
          }};
}

void Store::StartLoad(CacheId id) {
  const Plan& plan = environment_.plan;
  Books& books = books_.at(id);
  const GenerationPtr generation = generations_[id].lock();
  auto load = std::make_shared<Load>();
  load->id = id;
  load->started_us = environment_.now_us();
  if (generation != nullptr) load->fault = DrawFault(*generation);
  if (books.parent != kNoCacheId) load->parent = weights_.at(books.parent);
  const uint64_t missing = load->fault == Fault::kFewerBytes ? books.bytes / 4 : 0;
  if (load->fault != Fault::kNoMemory) load->weights = Allocate(books.digest, books.bytes - missing);
  books.is_loading = true;
  ++n_busy_loaders_;
  int64_t load_us = loads_.Between(plan.least_load_us, plan.longest_load_us);
  if (!is_healthy_ && loads_.PerMille(plan.load_fault_per_mille)) load_us *= 10;
  environment_.trace.Note("load starts", books.digest, books.bytes);
  environment_.timeline.In(load_us, [this, load] { EndLoad(load); });
}

Status Store::FailureOf(const Load& load, const Books& books) const {
  const std::string whose = "content " + books.digest + ": ";
  if (generations_.find(load.id) == generations_.end()) return Cancelled(whose + "nobody refers to it any more");
  switch (load.fault) {
    case Fault::kNone:
    case Fault::kFewerBytes: return Status::Ok();
    case Fault::kUnreadable: return Status(StatusCode::kIo, whose + "cannot be read");
    case Fault::kCorrupt: return Corrupt(whose + "has another digest");
    case Fault::kGone: return Unavailable(whose + "was changed in place");
    case Fault::kNoMemory: return ResourceExhausted(whose + "no memory for it");
    case Fault::kMoreBytes: return Internal(whose + "holds more bytes than computed");
  }
  return Status::Ok();
}

void Store::EndLoad(const std::shared_ptr<Load>& load) {
  const CacheId id = load->id;
  Books& books = books_.at(id);
  --n_busy_loaders_;
  books.is_loading = false;
  longest_load_us_ = std::max(longest_load_us_, environment_.now_us() - load->started_us);
  load->parent.reset();
  if (Status failure = FailureOf(*load, books); failure.ok()) {
    environment_.trace.Note("load ends", books.digest, load->weights->bytes);
    books.is_resident = true;
    books.n_failures = 0;
    books.loaded_us = environment_.now_us();
    cache_.LoadDone(id, load->weights->bytes, CacheNow());
    weights_[id] = std::move(load->weights);
  } else {
    environment_.trace.Note("load fails", failure.message());
    load->weights.reset();
    ++books.n_failures;
    books.asked_us = books.wanted_us = -1;
    failed_digests_.insert(books.digest);
    cache_.LoadFailed(id, std::move(failure), CacheNow());
    books.failed_us = latest_us_;
    if (!cache_.Knows(id)) books_.erase(id);
  }
  NotifyLoaders();
  NotifyDropper();
  wake_();
}

void Store::LookForDrops() {
  if (is_dropping_ || !environment_.verdict.ok()) return;
  const std::optional<CacheId> id = cache_.NextDrop(CacheNow());
  if (cache_.TakeReopened()) wake_();
  CheckClosed();
  if (!id) return CheckNothingIsLeft();
  CheckDropStarts(*id);
  if (environment_.verdict.ok()) StartDrop(*id);
}

void Store::StartDrop(CacheId id) {
  Books& books = books_.at(id);
  books.is_resident = books.is_evicted = false;
  books.is_dropping = is_dropping_ = true;
  environment_.trace.Note("drop starts", books.digest, books.bytes);
  environment_.timeline.In(threads_.Between<int64_t>(1, kLongestDropUs), [this, id] { EndDrop(id); });
}

void Store::EndDrop(CacheId id) {
  Books& books = books_.at(id);
  if (weights_.at(id).use_count() != 1) {
    environment_.verdict.Break("I9", "the weights of " + books.digest + " are dropped while somebody holds them");
    return;
  }
  weights_.erase(id);
  books.is_dropping = is_dropping_ = false;
  environment_.trace.Note("drop ends", books.digest, books.bytes);
  cache_.Dropped(id, CacheNow());
  if (!cache_.Knows(id)) books_.erase(id);
  NotifyLoaders();
  LookForDrops();
}

}  // namespace df::simulation
