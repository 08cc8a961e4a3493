// Where names come from besides calls: the command line, the state file, the watched directory.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <iterator>
#include <new>
#include <set>
#include <thread>
#include <utility>

#include "base/quiet_thread.h"
#include "store/confinement.h"
#include "store/live_store.h"

namespace df {
namespace {

// A variant that stood in the watched directory at the start is taken by the second look.
constexpr uint64_t kLooksToKnow = 2;

// How many looks pass until what was refused is tried again, first and at most: it may be read whole for each try.
constexpr uint64_t kFirstWaitLooks = 30, kLongestWaitLooks = 960;

// Whether a refusal may end without a change of the files: no room, a name that is taken, a parent in use, a device
// that does not answer.
bool MayPass(const Status& refused) {
  switch (refused.code()) {
    case StatusCode::kResourceExhausted:
    case StatusCode::kFailedPrecondition:
    case StatusCode::kUnavailable:
    case StatusCode::kIo: return true;
    default: return false;
  }
}

// body(i) for all i, on `n_threads` threads; the failure of the least i.
template <typename Body>
Status ForEach(size_t n, size_t n_threads, const Body& body) {
  std::vector<Status> done(n);
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next.fetch_add(1, std::memory_order_relaxed); i < n;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      try {
        done[i] = body(i);
      } catch (const std::bad_alloc&) {
        done[i] = ResourceExhausted("no memory");
      }
    }
  };
  std::vector<std::thread> threads;
  try {
    threads.reserve(n_threads);
    for (size_t i = 1; i < std::min(n, n_threads); ++i) threads.emplace_back(work);
  } catch (const std::exception&) {  // no thread, no memory: fewer do
  }
  work();
  for (std::thread& thread : threads) thread.join();
  for (const Status& status : done) DF_RETURN_IF_ERROR(status);
  return Status::Ok();
}

}  // namespace

Result<std::vector<LiveStore::Opened>> LiveStore::OpenGiven(const std::vector<GivenVariant>& given) const {
  std::vector<Opened> opened(given.size());
  const auto open = [&](size_t i) -> Status {
    DF_RETURN_IF_ERROR(registry_.CheckName(given[i].name));
    // What is loaded at once is verified by that.
    const RegisterOptions options = {.root = given[i].directory, .parent = given[i].parent};
    Result<Opened> one = Open(given[i].name, given[i].directory, options, false);
    if (!one.ok()) return one.status().Annotate("variant \"" + given[i].name + "\"");
    opened[i] = *std::move(one);
    return Status::Ok();
  };
  DF_RETURN_IF_ERROR(ForEach(given.size(), options_.n_load_threads, open));
  return opened;
}

Status LiveStore::AddGiven(const std::vector<GivenVariant>& given, const std::vector<std::string>& pinned) {
  std::vector<std::shared_ptr<const Variant>> variants;
  std::map<std::string, uint64_t> bytes;        // by digest: equal content is held once
  for (const bool on_parent : {false, true}) {  // parents first
    std::vector<GivenVariant> wave;
    std::ranges::copy_if(given, std::back_inserter(wave),
                         [&](const GivenVariant& one) { return one.parent.empty() != on_parent; });
    DF_ASSIGN_OR_RETURN(std::vector<Opened> opened, OpenGiven(wave));
    for (const Opened& one : opened) bytes[one.source->info.digest] = one.source->info.resident_bytes;
    uint64_t sum = set_->Sums().charged_bytes;
    for (const auto& [digest, n] : bytes) sum += n;
    set_->RaiseBudget(std::min(sum, options_.raised_bytes));
    for (Opened& one : opened) {
      const std::string name = one.variant->name;
      const RegisterOptions options = {.root = one.variant->root, .parent = one.variant->parent};
      auto published = Publish(Origin::kCommandLine, std::move(one), options);
      if (!published.ok()) return published.status().Annotate("variant \"" + name + "\"");
      variants.push_back(*std::move(published));
    }
  }
  for (const std::string& name : pinned) DF_RETURN_IF_ERROR(PinGiven(name));
  std::vector<std::shared_ptr<const Variant>> order;
  for (const bool is_pinned : {true, false}) {
    for (const auto& variant : variants) {
      if (IsPinned(variant->name) == is_pinned) order.push_back(variant);
    }
  }
  return LoadGiven(order);
}

Status LiveStore::PinGiven(const std::string& name) {
  const bool may_come = state_ != nullptr || !options_.variant_dir.empty();
  const std::scoped_lock lock(changes_);
  const auto variant = registry_.Find(name, "");
  if (!variant.ok() && !(may_come && variant.status().code() == StatusCode::kNotFound)) return variant.status();
  if (variant.ok()) {
    if (const Status done = ApplyPin(**variant, true); !done.ok()) return done.Annotate("variant \"" + name + "\"");
  }
  pinned_.Set(name, true);
  awaited_.Set(name, true);
  return Status::Ok();
}

// As many as fit beside each other; the others are verified and wait for their first request.
Status LiveStore::LoadGiven(const std::vector<std::shared_ptr<const Variant>>& variants) {
  uint64_t room_bytes = set_->Sums().budget_bytes - set_->Sums().charged_bytes;
  std::set<const Generation*> seen, placed;
  std::vector<const Variant*> loading, later;
  for (const auto& variant : variants) {
    const StoredGeneration& generation = StoredOf(*variant);
    if (!seen.insert(&generation).second) continue;
    std::vector<const Generation*> needed;  // itself and its parent, where they are not there for others anyway
    for (const Generation* one : {static_cast<const Generation*>(&generation), generation.parent().get()}) {
      if (one != nullptr && !placed.contains(one)) needed.push_back(one);
    }
    uint64_t bytes = 0;
    for (const Generation* one : needed) bytes += one->info().resident_bytes;
    const bool has_room = bytes <= room_bytes;
    (has_room ? loading : later).push_back(variant.get());
    if (!has_room) continue;
    room_bytes -= bytes;
    placed.insert(needed.begin(), needed.end());
  }
  for (const Variant* variant : loading) set_->Prefetch(StoredOf(*variant));
  for (const Variant* variant : loading) {
    const Status loaded = set_->LoadBlocking(StoredOf(*variant));
    if (!loaded.ok()) return loaded.Annotate("variant \"" + variant->name + "\"");
  }
  for (const Variant* variant : later) {
    const Status fits = set_->CheckFits(StoredOf(*variant));
    if (!fits.ok()) Warn("variant \"" + variant->name + "\" cannot be had beside what is pinned: " + fits.message());
  }
  return ForEach(later.size(), options_.n_load_threads, [&](size_t i) -> Status {
    const Status verified = VerifySource(*StoredOf(*later[i]).source());
    return verified.ok() ? verified : verified.Annotate("variant \"" + later[i]->name + "\"");
  });
}

bool LiveStore::RestoreAndWatch(const RestoreHooks& hooks) {
  if (!RestorePool(hooks)) return false;
  if (state_ != nullptr && !Restore(state_->state(), hooks)) return false;
  if (options_.variant_dir.empty()) {
    has_looked_ = true;
  } else {
    watcher_ = StartQuietThread([this] { WatchLoop(); });
  }
  return true;
}

bool LiveStore::Restore(const StoredState& stored, const RestoreHooks& hooks) {
  for (const bool on_parent : {false, true}) {
    for (const auto& [name, at] : stored.registrations) {
      if (at.parent.empty() == on_parent) continue;
      if (hooks.gives_up && hooks.gives_up()) return false;
      Result<std::string> directory = hooks.resolve ? hooks.resolve(at.directory) : at.directory;
      Status restored = directory.status();
      if (directory.ok()) {
        const RegisterOptions options = {.root = at.root, .parent = at.parent, .replace = true};
        restored = RegisterFrom(Origin::kRestored, name, *directory, options).status();
      } else {
        restored = restored.Annotate("variant \"" + name + "\", " + at.directory);
      }
      if (!restored.ok()) Warn("not restored, stays in the state file: " + restored.message());
    }
  }
  for (const auto& [name, is_pinned] : stored.pins) {
    const std::scoped_lock lock(changes_);
    pinned_.Set(name, is_pinned);
    const auto variant = registry_.Find(name, "");
    if (!variant.ok()) continue;  // pinned when it comes: watched, or registered later
    if (const Status done = ApplyPin(**variant, is_pinned); !done.ok()) {
      pinned_.Set(name, false);
      Warn("\"" + name + "\" cannot be pinned: " + done.message());
    }
  }
  return true;
}

void LiveStore::WatchLoop() {
  Watching watching = {.directory = DirectoryWatch(options_.variant_dir)};
  std::unique_lock lock(watch_mutex_);
  while (!stopping_) {
    lock.unlock();
    try {
      LookOnce(watching);
    } catch (const std::exception& error) {  // no memory: the program goes on, and looks again
      try {
        Warn(options_.variant_dir + ": " + error.what());
      } catch (const std::exception&) {  // not even for that
      }
    }
    lock.lock();
    watch_.wait_for(lock, std::chrono::milliseconds(options_.look_every_ms), [this] { return stopping_; });
  }
}

// What is refused for a reason that may pass by itself is tried again now and then, and told of when the reason is new.
void LiveStore::LookOnce(Watching& watching) {
  const auto changes = watching.directory.Look();
  const std::string failure = changes.ok() ? "" : changes.status().message();
  if (!failure.empty() && failure != watching.said) Warn(failure);
  watching.said = failure;
  if (changes.ok()) {
    for (const WatchedChange& change : *changes) watching.open[change.name] = {.change = change};
    for (const WatchedMisfit& one : watching.directory.misfits()) Warn(one.directory + " is left out: " + one.why);
  }
  ++watching.n_looks;
  for (auto at = watching.open.begin(); at != watching.open.end();) {
    OpenChange& open = at->second;
    if (open.due_look > watching.n_looks) {
      ++at;
      continue;
    }
    open.wait_looks = std::clamp(2 * open.wait_looks, kFirstWaitLooks, kLongestWaitLooks);
    open.due_look = watching.n_looks + open.wait_looks;
    const Status followed = Follow(open.change, watching.ours);
    if (!followed.ok() && followed.message() != open.said) Warn(followed.message());
    open.said = followed.message();
    at = MayPass(followed) ? std::next(at) : watching.open.erase(at);
  }
  if (watching.n_looks >= kLooksToKnow) has_looked_ = true;
}

// Of `directory` in the watched one: links may lead about in it, as volumes of Kubernetes are laid out, not out of it.
Result<std::string> LiveStore::ConfinedPlace(const std::string& directory) const {
  const std::optional<std::string> root = CanonicalPlace(options_.variant_dir), place = CanonicalPlace(directory);
  if (!root || !place) return Unavailable(directory + " cannot be found now");
  DF_RETURN_IF_ERROR(
      CheckConfined(*place, {.root = *root, .root_name = "the directory of --variant-dir", .what = directory}));
  return *place;
}

// A name that somebody else gave, or took over meanwhile, is left alone.
Status LiveStore::Follow(const WatchedChange& change, std::map<std::string, std::string>& ours) {
  const auto mine = ours.find(change.name);
  const auto taken = registry_.FindOrNull(change.name);
  const bool is_ours =
      taken != nullptr && mine != ours.end() && !taken->IsBase() && taken->generation->info().digest == mine->second;
  if (change.kind == WatchedChange::Kind::kGone) {
    if (is_ours) {
      const Status retired = RetireFrom(Origin::kWatched, change.name, mine->second);
      if (!retired.ok()) return retired.Annotate(change.directory + " is gone");
    }
    if (mine != ours.end()) ours.erase(mine);
    return Status::Ok();
  }
  if (taken != nullptr && !is_ours) {
    return FailedPrecondition(change.directory + ": the name is taken by another variant");
  }
  DF_ASSIGN_OR_RETURN(const std::string directory, ConfinedPlace(change.directory));
  const auto registered = RegisterFrom(Origin::kWatched, change.name, directory,
                                       {.root = change.directory,
                                        .parent = {},
                                        .replace = is_ours,
                                        .expected_generation = is_ours ? mine->second : std::string()});
  if (!registered.ok()) return registered.status().Annotate(change.directory);
  ours[change.name] = (*registered)->generation->info().digest;
  return Status::Ok();
}

}  // namespace df
