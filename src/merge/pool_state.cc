#include "merge/pool_state.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "base/json.h"
#include "base/utf8.h"
#include "format/digest.h"
#include "format/message.h"

namespace df {
namespace {

constexpr int64_t kVersion = 1;
constexpr size_t kMaxStateBytes = size_t{256} << 20;  // some 300 bytes a member
constexpr size_t kMaxIdBytes = 256;
constexpr size_t kMaxNameDigits = 18;
constexpr int64_t kMaxRank = 65536;  // as of adapters

constexpr std::array<std::pair<PoolPolicy, std::string_view>, 3> kPolicies = {
    {{PoolPolicy::kKMerge, "kmerge"}, {PoolPolicy::kKMergePlus, "kmerge++"}, {PoolPolicy::kBounded, "bounded"}}};
constexpr std::array<std::pair<AdapterRule, std::string_view>, 2> kRules = {
    {{AdapterRule::kMean, "mean"}, {AdapterRule::kOpcm, "opcm"}}};
constexpr std::array<std::pair<PoolRefusal, std::string_view>, 2> kRefusals = {
    {{PoolRefusal::kReject, "reject"}, {PoolRefusal::kEvict, "evict"}}};
constexpr std::array<std::pair<DType, std::string_view>, 3> kDTypes = {
    {{DType::kF32, "f32"}, {DType::kBf16, "bf16"}, {DType::kF16, "f16"}}};

template <typename Enum, size_t n>
std::string NameIn(const std::array<std::pair<Enum, std::string_view>, n>& names, Enum value) {
  return std::string(std::ranges::find(names, value, &std::pair<Enum, std::string_view>::first)->second);
}

template <typename Enum, size_t n>
Status ReadName(const Json& object, std::string_view key, const std::array<std::pair<Enum, std::string_view>, n>& names,
                Enum& value) {
  DF_ASSIGN_OR_RETURN(const std::string name, JsonString(object, key));
  const auto found = std::ranges::find(names, name, &std::pair<Enum, std::string_view>::second);
  if (found == names.end()) return Corrupt("\"" + std::string(key) + "\" is " + Quoted(name) + ", which is unknown");
  value = found->first;
  return Status::Ok();
}

Status ReadLength(const Json& object, std::string_view key, double& value) {
  DF_ASSIGN_OR_RETURN(value, JsonNumber(object, key));
  if (value >= 0) return Status::Ok();
  return Corrupt("\"" + std::string(key) + "\" is negative");
}

Status ReadCount(const Json& object, std::string_view key, uint64_t& value) {
  DF_ASSIGN_OR_RETURN(const int64_t number, JsonInt(object, key, {.min = 0}));
  value = static_cast<uint64_t>(number);
  return Status::Ok();
}

Result<std::optional<double>> ReadOptional(const Json& object, std::string_view key) {
  if (JsonMemberOrNull(object, key) == nullptr) return std::optional<double>();
  DF_ASSIGN_OR_RETURN(const double value, JsonNumber(object, key));
  return std::optional(value);
}

// The array `key` of objects.
Result<const Json*> ReadObjects(const Json& object, std::string_view key) {
  const Json* list = JsonMemberOrNull(object, key);
  if (list == nullptr || !list->is_array()) return Corrupt("\"" + std::string(key) + "\" is no array");
  for (const Json& entry : *list) {
    if (!entry.is_object()) return Corrupt("\"" + std::string(key) + "\" has an entry that is no object");
  }
  return list;
}

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json ToJson(const PoolSettings& settings) {
  return {{"budget_bytes", settings.budget_bytes},
          {"policy", PoolPolicyName(settings.policy)},
          {"rank", settings.rank},
          {"dtype", settings.auto_dtype ? std::string("auto") : NameIn(kDTypes, settings.dtype)},
          {"threshold", settings.threshold},
          {"threshold_is_quantile", settings.threshold_is_quantile},
          {"max_error", OrNull(settings.max_error)},
          {"min_score_share", settings.min_score_share},
          {"rule", NameIn(kRules, settings.rule)},
          {"alpha", settings.alpha},
          {"on_refusal", NameIn(kRefusals, settings.on_refusal)}};
}

Json ToJson(const PoolMember& member) {
  return {{"id", member.id},
          {"digest", member.digest},
          {"root", member.root},
          {"norm", member.norm},
          {"distance_at_most", member.distance_at_most},
          {"distance_estimate", member.distance_estimate},
          {"sketch_row", member.sketch_row},
          {"own_score", OrNull(member.own_score)},
          {"score", OrNull(member.score)}};
}

Json ToJson(const PoolSlot& slot) {
  Json members = Json::array(), former = Json::array();
  for (const PoolMember& member : slot.members) members.push_back(ToJson(member));
  for (const PoolMember& member : slot.former) former.push_back(ToJson(member));
  return {{"name", slot.name},
          {"digest", slot.digest},
          {"text_digest", slot.text_digest},
          {"whole", slot.whole},
          {"bytes", slot.bytes},
          {"n_merged", slot.n_merged},
          {"norm", slot.norm},
          {"sum_of_norms", slot.sum_of_norms},
          {"opcm_scale", slot.opcm_scale},
          {"mean_distance_at_most", slot.mean_distance_at_most},
          {"discarded_share", slot.discarded_share},
          {"uses", slot.uses},
          {"similarities", slot.similarities},
          {"members", std::move(members)},
          {"former", std::move(former)}};
}

Json ToJson(const PoolState& state) {
  Json slots = Json::array();
  for (const PoolSlot& slot : state.slots) slots.push_back(ToJson(slot));
  return {{"settings", ToJson(state.settings)}, {"next_slot", state.next_slot},   {"n_added", state.n_added},
          {"n_merges", state.n_merges},         {"n_refusals", state.n_refusals}, {"n_evictions", state.n_evictions},
          {"slots", std::move(slots)}};
}

std::string DigestOf(const Json& state) {
  Digest digest;
  digest.AddText(DumpJson(state));
  return digest.Hex();
}

Result<PoolSettings> ReadSettings(const Json& json) {
  PoolSettings settings;
  DF_RETURN_IF_ERROR(ReadCount(json, "budget_bytes", settings.budget_bytes));
  DF_RETURN_IF_ERROR(ReadName(json, "policy", kPolicies, settings.policy));
  DF_ASSIGN_OR_RETURN(const int64_t rank, JsonInt(json, "rank", {.min = 0, .max = kMaxRank}));
  settings.rank = static_cast<size_t>(rank);
  DF_ASSIGN_OR_RETURN(const std::string dtype, JsonString(json, "dtype"));
  settings.auto_dtype = dtype == "auto";
  if (!settings.auto_dtype) DF_RETURN_IF_ERROR(ReadName(json, "dtype", kDTypes, settings.dtype));
  DF_ASSIGN_OR_RETURN(settings.threshold, JsonNumber(json, "threshold"));
  DF_ASSIGN_OR_RETURN(settings.threshold_is_quantile, JsonBoolOr(json, "threshold_is_quantile", false));
  DF_ASSIGN_OR_RETURN(settings.max_error, ReadOptional(json, "max_error"));
  DF_ASSIGN_OR_RETURN(settings.min_score_share, JsonNumber(json, "min_score_share"));
  DF_RETURN_IF_ERROR(ReadName(json, "rule", kRules, settings.rule));
  DF_ASSIGN_OR_RETURN(settings.alpha, JsonNumber(json, "alpha"));
  DF_RETURN_IF_ERROR(ReadName(json, "on_refusal", kRefusals, settings.on_refusal));
  DF_RETURN_IF_ERROR(CheckPoolSettings(settings));
  return settings;
}

Result<PoolMember> ReadMember(const Json& json) {
  PoolMember member;
  DF_ASSIGN_OR_RETURN(member.id, JsonString(json, "id"));
  DF_ASSIGN_OR_RETURN(member.digest, JsonStringOr(json, "digest", ""));
  if (!member.digest.empty() && !IsDigest(member.digest)) return Corrupt("a member has a digest that is none");
  DF_ASSIGN_OR_RETURN(member.root, JsonStringOr(json, "root", ""));
  DF_RETURN_IF_ERROR(ReadLength(json, "norm", member.norm));
  DF_RETURN_IF_ERROR(ReadLength(json, "distance_at_most", member.distance_at_most));
  DF_RETURN_IF_ERROR(ReadLength(json, "distance_estimate", member.distance_estimate));
  uint64_t row = 0;
  DF_RETURN_IF_ERROR(ReadCount(json, "sketch_row", row));
  member.sketch_row = row;
  DF_ASSIGN_OR_RETURN(member.own_score, ReadOptional(json, "own_score"));
  DF_ASSIGN_OR_RETURN(member.score, ReadOptional(json, "score"));
  return member;
}

// Its number; 0 for what is no name of a slot.
uint64_t NumberOf(std::string_view name) {
  const bool is_name = name.size() >= 6 && name.size() <= kMaxNameDigits &&
                       std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
  if (!is_name || (name.size() > 6 && name[0] == '0')) return 0;
  uint64_t number = 0;
  for (const char c : name) number = number * 10 + static_cast<uint64_t>(c - '0');
  return number;
}

Status ReadSimilarities(const Json& json, PoolSlot& slot) {
  const Json* similarities = JsonMemberOrNull(json, "similarities");
  if (similarities == nullptr || !similarities->is_object()) return Corrupt("\"similarities\" is no object");
  for (const auto& [name, value] : similarities->items()) {
    DF_ASSIGN_OR_RETURN(const double similarity, JsonNumber(*similarities, name));
    if (similarity < -1 || similarity > 1) return Corrupt("a similarity is outside [-1, 1]");
    slot.similarities[name] = similarity;
  }
  return Status::Ok();
}

// What files of older programs lack.
Status ReadFormer(const Json& json, PoolSlot& slot) {
  if (JsonMemberOrNull(json, "former") == nullptr) return Status::Ok();
  DF_ASSIGN_OR_RETURN(const Json* former, ReadObjects(json, "former"));
  if (former->size() > slot.n_merged) return Corrupt("slot " + slot.name + " has more former members than went in");
  for (const Json& entry : *former) {
    DF_ASSIGN_OR_RETURN(const PoolMember& member, ReadMember(entry));
    if (!member.id.empty() || member.digest.empty()) return Corrupt("a former member has an id, or no digest");
    slot.former.push_back(member);
  }
  return Status::Ok();
}

Result<PoolSlot> ReadSlot(const Json& json) {
  PoolSlot slot;
  DF_ASSIGN_OR_RETURN(slot.name, JsonString(json, "name"));
  if (NumberOf(slot.name) == 0) return Corrupt(Quoted(slot.name) + " is no name of a slot");
  DF_ASSIGN_OR_RETURN(slot.digest, JsonString(json, "digest"));
  DF_ASSIGN_OR_RETURN(slot.text_digest, JsonString(json, "text_digest"));
  if (!IsDigest(slot.digest) || (!slot.text_digest.empty() && !IsDigest(slot.text_digest))) {
    return Corrupt("slot " + slot.name + " has a digest that is none");
  }
  DF_ASSIGN_OR_RETURN(slot.whole, JsonString(json, "whole"));
  DF_RETURN_IF_ERROR(ReadCount(json, "bytes", slot.bytes));
  DF_RETURN_IF_ERROR(ReadCount(json, "n_merged", slot.n_merged));
  DF_RETURN_IF_ERROR(ReadLength(json, "norm", slot.norm));
  DF_RETURN_IF_ERROR(ReadLength(json, "sum_of_norms", slot.sum_of_norms));
  DF_RETURN_IF_ERROR(ReadLength(json, "opcm_scale", slot.opcm_scale));
  DF_RETURN_IF_ERROR(ReadLength(json, "mean_distance_at_most", slot.mean_distance_at_most));
  DF_RETURN_IF_ERROR(ReadLength(json, "discarded_share", slot.discarded_share));
  DF_RETURN_IF_ERROR(ReadCount(json, "uses", slot.uses));
  DF_RETURN_IF_ERROR(ReadSimilarities(json, slot));
  DF_ASSIGN_OR_RETURN(const Json* members, ReadObjects(json, "members"));
  for (const Json& entry : *members) {
    DF_ASSIGN_OR_RETURN(slot.members.emplace_back(), ReadMember(entry));
    DF_RETURN_IF_ERROR(CheckPoolId(slot.members.back().id));
  }
  DF_RETURN_IF_ERROR(ReadFormer(json, slot));
  if (slot.members.empty()) return Corrupt("slot " + slot.name + " has no members");
  if (slot.n_merged == 0) return Corrupt("slot " + slot.name + " has nothing in it");
  return slot;
}

Result<PoolState> ReadState(const Json& json) {
  PoolState state;
  const Json* settings = JsonMemberOrNull(json, "settings");
  if (settings == nullptr || !settings->is_object()) return Corrupt("\"settings\" is no object");
  DF_ASSIGN_OR_RETURN(state.settings, ReadSettings(*settings));
  DF_RETURN_IF_ERROR(ReadCount(json, "next_slot", state.next_slot));
  DF_RETURN_IF_ERROR(ReadCount(json, "n_added", state.n_added));
  DF_RETURN_IF_ERROR(ReadCount(json, "n_merges", state.n_merges));
  DF_RETURN_IF_ERROR(ReadCount(json, "n_refusals", state.n_refusals));
  DF_RETURN_IF_ERROR(ReadCount(json, "n_evictions", state.n_evictions));
  DF_ASSIGN_OR_RETURN(const Json* slots, ReadObjects(json, "slots"));
  std::set<std::string> ids;
  uint64_t former = 0;
  for (const Json& entry : *slots) {
    DF_ASSIGN_OR_RETURN(const PoolSlot& slot, ReadSlot(entry));
    const uint64_t number = NumberOf(slot.name);
    if (number <= former || number >= state.next_slot) return Corrupt("slot " + slot.name + " is out of order");
    former = number;
    for (const PoolMember& member : slot.members) {
      if (!ids.insert(member.id).second) return Corrupt("the id " + Quoted(member.id) + " stands twice");
    }
    state.slots.push_back(slot);
  }
  return state;
}

}  // namespace

std::string_view PoolPolicyName(PoolPolicy policy) {
  return std::ranges::find(kPolicies, policy, &decltype(kPolicies)::value_type::first)->second;
}

Result<PoolPolicy> ParsePoolPolicy(std::string_view name) {
  const auto found = std::ranges::find(kPolicies, name, &decltype(kPolicies)::value_type::second);
  if (found != kPolicies.end()) return found->first;
  return InvalidArgument("the policy " + Quoted(name) + " is unknown: kmerge, kmerge++ or bounded");
}

Status CheckPoolSettings(const PoolSettings& settings) {
  if (settings.budget_bytes == 0) return InvalidArgument("the pool's budget is 0 bytes: give the bytes of its slots");
  if (settings.budget_bytes > uint64_t{INT64_MAX}) return InvalidArgument("the pool's budget is above 2^63 - 1 bytes");
  if (settings.rank > static_cast<size_t>(kMaxRank)) return InvalidArgument("the pool's rank is above 65536");
  const double least = settings.threshold_is_quantile ? 0 : -1;
  if (!(settings.threshold >= least && settings.threshold <= 1)) {
    return InvalidArgument("the threshold must be a similarity in [-1, 1], or a quantile in [0, 1]");
  }
  if (settings.max_error && !(*settings.max_error >= 0 && std::isfinite(*settings.max_error))) {
    return InvalidArgument("the largest error must be a number from 0");
  }
  if (!(settings.min_score_share >= 0 && settings.min_score_share <= 1)) {
    return InvalidArgument("the share of a score that is kept must be in [0, 1]");
  }
  if (!(settings.alpha >= 0 && settings.alpha < 1)) return InvalidArgument("opcm's alpha must be in [0, 1)");
  return Status::Ok();
}

uint64_t PoolState::UsedBytes() const {
  uint64_t bytes = 0;
  for (const PoolSlot& slot : slots) bytes += slot.bytes;
  return bytes;
}

size_t PoolState::Damaged() const {
  return static_cast<size_t>(std::ranges::count_if(slots, [](const PoolSlot& slot) { return !slot.damage.empty(); }));
}

const PoolSlot* PoolState::FindOrNull(std::string_view id) const {
  for (const PoolSlot& slot : slots) {
    if (std::ranges::any_of(slot.members, [&](const PoolMember& member) { return member.id == id; })) return &slot;
  }
  return nullptr;
}

const PoolMember* PoolSlot::RecordOrNull(std::string_view content_digest, std::string_view content_text_digest) const {
  if (text_digest != content_text_digest) return nullptr;
  for (const std::vector<PoolMember>* records : {&members, &former}) {
    const auto found = std::ranges::find(*records, content_digest, &PoolMember::digest);
    if (found != records->end()) return &*found;
  }
  return n_merged == 1 && digest == content_digest ? &members.front() : nullptr;
}

bool DropMember(std::string_view id, PoolState& state) {
  for (auto slot = state.slots.begin(); slot != state.slots.end(); ++slot) {
    const auto found = std::ranges::find(slot->members, id, &PoolMember::id);
    if (found == slot->members.end()) continue;
    PoolMember gone = std::move(*found);
    slot->members.erase(found);
    if (slot->members.empty()) {
      state.slots.erase(slot);
    } else if (!gone.digest.empty() && slot->RecordOrNull(gone.digest, slot->text_digest) == nullptr) {
      gone.id.clear();
      gone.root.clear();
      slot->former.push_back(std::move(gone));
    }
    return true;
  }
  return false;
}

Status CheckPoolId(std::string_view id) {
  const bool is_printable = std::ranges::none_of(id, [](char c) { return static_cast<uint8_t>(c) < 32 || c == 127; });
  if (!id.empty() && id.size() <= kMaxIdBytes && IsValidUtf8(id) && is_printable) return Status::Ok();
  return InvalidArgument("the id " + Quoted(id) + " must be 1 to 256 bytes of UTF-8 without control characters");
}

std::string DumpPoolState(const PoolState& state) {
  const Json json = ToJson(state);
  return DumpJson({{"deltafold_pool", kVersion}, {"digest", DigestOf(json)}, {"state", json}}, 1) + "\n";
}

Result<PoolState> ParsePoolState(std::string_view text) {
  DF_ASSIGN_OR_RETURN(const Json file, ParseJson(text, {.max_bytes = kMaxStateBytes}));
  if (!file.is_object()) return Corrupt("it is no JSON object");
  const Result<int64_t> version = JsonInt(file, "deltafold_pool", {.min = 1});
  if (!version.ok()) return Corrupt("it is no adapter pool's state: " + version.status().message());
  if (*version != kVersion) {
    return Unsupported("an adapter pool of version " + std::to_string(*version) + ", this program reads version " +
                       std::to_string(kVersion));
  }
  const Json* const json = JsonMemberOrNull(file, "state");
  if (json == nullptr || !json->is_object()) return Corrupt("\"state\" is no object");
  const Result<std::string> digest = JsonString(file, "digest");
  if (!digest.ok() || *digest != DigestOf(*json)) {
    return Corrupt("its digest is another: the file was damaged, or changed by hand");
  }
  Result<PoolState> state = ReadState(*json);
  if (!state.ok()) return Corrupt(state.status().message());
  return state;
}

}  // namespace df
