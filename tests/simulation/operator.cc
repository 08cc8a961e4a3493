#include "operator.h"

#include <algorithm>
#include <utility>

namespace df::simulation {
namespace {

constexpr int64_t kLongestOpenUs = 20'000;
constexpr int64_t kLongestJumpUs = 30'000'000;

}  // namespace

Operator::Operator(Environment& environment, Store& store)
    : environment_(environment), store_(store), draws_(environment.plan.seed, Stream::kOperator) {
  names_["base"] = {};
}

void Operator::Start() {
  const Plan& plan = environment_.plan;
  for (size_t i = 0; i < plan.names.size(); ++i) {
    if (plan.is_steady) {
      const bool is_child = plan.is_family && i > 0;
      Register(plan.names[i], plan.contents[i], is_child ? plan.names[0] : "", false);
    } else if (draws_.PerMille(850)) {
      Register(plan.names[i], draws_.OneOf(plan.contents), DrawParent(plan.names[i]), false);
    }
  }
  if (plan.change_us > 0) ChangeLater();
}

void Operator::ChangeLater() {
  environment_.timeline.In(draws_.Between<int64_t>(0, 2 * environment_.plan.change_us), [this] { Change(); });
}

void Operator::Change() {
  if (is_over_) return;
  if (draws_.PerMille(environment_.plan.jump_per_mille)) {
    const int64_t jump_us = draws_.Between<int64_t>(1, kLongestJumpUs);
    environment_.trace.Note("clock jumps", "", static_cast<uint64_t>(jump_us));
    environment_.timeline.Jump(jump_us);
  }
  switch (draws_.Below(9)) {
    case 0:
    case 1: RegisterAny(draws_.PerMille(500)); break;
    case 2: RegisterAny(true); break;
    case 3: Retire(); break;
    case 4: SetPinned(draws_.PerMille(environment_.plan.pin_per_mille)); break;
    case 5: SetPinned(false); break;
    case 6: Prefetch(); break;
    default: Evict(); break;
  }
  ChangeLater();
}

std::string Operator::DrawExpected(const std::string& name) {
  if (draws_.PerMille(600)) return "";
  const auto found = names_.find(name);
  if (found != names_.end() && draws_.PerMille(700)) return found->second.digest;
  return draws_.OneOf(environment_.plan.contents).digest;
}

Operator::Expected Operator::DrawName() {
  const std::string name = draws_.OneOf(environment_.plan.names);
  return {.name = name, .generation = DrawExpected(name)};
}

StatusCode Operator::Found(const Expected& expected) const {
  const auto found = names_.find(expected.name);
  if (found == names_.end()) return StatusCode::kNotFound;
  const bool is_it = expected.generation.empty() || expected.generation == found->second.digest;
  return is_it ? StatusCode::kOk : StatusCode::kUnavailable;
}

void Operator::Check(const std::string& call, const std::string& name, const Status& got, StatusCode expected,
                     StatusCode also) {
  environment_.trace.Note(call, name + (got.ok() ? "" : ": " + got.message()));
  if (got.code() == expected || (expected == StatusCode::kOk && got.code() == also)) return;
  environment_.verdict.Break("I3", call + " of " + name + " answers " + std::string(StatusCodeName(got.code())) + " " +
                                       got.message() + ", expected " + std::string(StatusCodeName(expected)));
}

std::string Operator::DrawParent(const std::string& name) {
  if (!draws_.PerMille(250)) return "";
  const std::string& parent = draws_.OneOf(environment_.plan.names);
  return parent == name ? "" : parent;
}

void Operator::RegisterAny(bool may_replace) {
  const std::string& name = draws_.OneOf(environment_.plan.names);
  const Content& content = draws_.OneOf(environment_.plan.contents);
  Register(name, content, DrawParent(name), may_replace);
}

void Operator::Register(const std::string& name, const Content& content, const std::string& parent, bool may_replace) {
  Result<Source> opened = store_.Open(content, parent);
  if (!opened.ok()) return environment_.trace.Note("not opened", name + " on " + parent);
  const PutOptions options = {.replace = may_replace, .expected_generation = may_replace ? DrawExpected(name) : ""};
  const bool pinned = draws_.PerMille(environment_.plan.pin_per_mille / 4);
  if (environment_.now_us() == 1) return Publish(name, *std::move(opened), options, pinned);  // at the start
  // Others may change the same names between reading and naming.
  environment_.timeline.In(draws_.Between<int64_t>(0, kLongestOpenUs), [=, this] {
    if (!is_over_) Publish(name, *opened, options, pinned);
  });
}

bool Operator::IsParent(const std::string& name) const {
  return std::any_of(names_.begin(), names_.end(), [&](const auto& other) { return other.second.parent == name; });
}

// A child goes with the parent that it was opened on, and nothing replaces a parent but its own content.
bool Operator::KeepsFamily(const std::string& name, const Name& given) const {
  const auto parent = names_.find(given.parent);
  if (!given.parent.empty() && (parent == names_.end() || parent->second.digest != given.parent_digest)) return false;
  return !IsParent(name) || names_.at(name).digest == given.digest;
}

void Operator::Publish(const std::string& name, Source source, const PutOptions& options, bool pinned) {
  const Name given = {.digest = source.digest,
                      .parent_digest = source.parent == nullptr ? "" : source.parent->info().digest,
                      .parent = source.parent_name};
  nan_digests_[given.digest] = source.has_nan;
  StatusCode expected = StatusCode::kOk;
  if (names_.contains(name) && !options.replace) expected = StatusCode::kFailedPrecondition;
  if (expected == StatusCode::kOk && !options.expected_generation.empty()) {
    expected = Found({.name = name, .generation = options.expected_generation});
  }
  if (expected == StatusCode::kOk && !KeepsFamily(name, given)) expected = StatusCode::kFailedPrecondition;
  const Status got = store_.Publish(name, std::move(source), options, pinned);
  if (got.ok()) names_[name] = given;
  Check(options.replace ? "replace" : "register", name + " = " + given.digest, got, expected,
        StatusCode::kResourceExhausted);
}

void Operator::Retire() {
  const Expected target = DrawName();
  StatusCode expected = Found(target);
  if (expected == StatusCode::kOk && IsParent(target.name)) expected = StatusCode::kFailedPrecondition;
  const Status got = store_.Retire(target.name, target.generation);
  if (got.ok()) names_.erase(target.name);
  Check("retire", target.name, got, expected);
}

void Operator::SetPinned(bool pinned) {
  const Expected target = DrawName();
  const Status got = store_.SetPinned(target.name, target.generation, pinned);
  Check(pinned ? "pin" : "unpin", target.name, got, Found(target),
        pinned ? StatusCode::kResourceExhausted : StatusCode::kOk);
}

void Operator::Prefetch() {
  const Expected target = DrawName();
  Check("prefetch", target.name, store_.Prefetch(target.name, target.generation), Found(target));
}

bool Operator::MayEvict(const std::string& name) const {
  const auto generation = store_.FindOrNull(name)->generation;
  const CacheId id = Store::IdOf(*generation);
  for (const auto& variant : store_.registry().List()) {
    if (variant->generation == generation && store_.IsPinned(variant->name)) return false;
  }
  const Books& books = store_.books().at(id);
  if (books.is_loading) return false;
  if (!books.is_resident) return true;
  return books.n_leases == 0 && std::none_of(store_.books().begin(), store_.books().end(), [&](const auto& other) {
           const Books& child = other.second;
           return child.parent == id && (child.is_loading || child.is_resident || child.is_dropping);
         });
}

void Operator::Evict() {
  const Expected target = DrawName();
  StatusCode expected = Found(target);
  if (expected == StatusCode::kOk && !MayEvict(target.name)) expected = StatusCode::kFailedPrecondition;
  Check("evict", target.name, store_.Evict(target.name, target.generation), expected);
}

// Children before their parents.
void Operator::RetireAll() {
  for (size_t round = 0; round < 2; ++round) {
    for (const std::string& name : environment_.plan.names) {
      if (store_.Retire(name, "").ok()) names_.erase(name);
    }
  }
  if (names_.size() > 1) environment_.verdict.Break("I4", "names cannot be retired");
}

const std::string* Operator::DigestOrNull(const std::string& name) const {
  const auto found = names_.find(name);
  return found == names_.end() ? nullptr : &found->second.digest;
}

bool Operator::HasNan(const std::string& digest) const { return nan_digests_.at(digest); }

void Operator::CheckNames() const {
  const auto listed = store_.registry().List();
  bool is_same = listed.size() == names_.size();
  for (const auto& variant : listed) {
    const std::string* digest = DigestOrNull(variant->name);
    is_same &= digest != nullptr && *digest == (variant->IsBase() ? "" : variant->generation->info().digest);
  }
  if (!is_same) environment_.verdict.Break("I3", "the registry holds other names than it was given");
}

}  // namespace df::simulation
