// What an adapter pool knows: its settings, its slots and who is in them. One JSON file, pool.json, which is replaced
// as a whole by every change (docs/formats/pool.md).
#ifndef DELTAFOLD_MERGE_POOL_STATE_H_
#define DELTAFOLD_MERGE_POOL_STATE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "merge/adapter_merge.h"

namespace df {

enum class PoolPolicy {
  kKMerge,      // a free slot is taken; without one the most similar slot takes the adapter in
  kKMergePlus,  // a free slot is taken only by what is unlike every slot
  kBounded,     // as kKMerge, but a merge must leave every member good enough
};
enum class PoolRefusal { kReject, kEvict };
std::string_view PoolPolicyName(PoolPolicy policy);  // "kmerge", "kmerge++", "bounded"
Result<PoolPolicy> ParsePoolPolicy(std::string_view name);

struct PoolSettings {
  uint64_t budget_bytes = 0;  // of the slots' tensors
  PoolPolicy policy = PoolPolicy::kKMerge;
  size_t rank = 0;            // of merged slots; 0 = the larger rank of the two, module by module
  DType dtype = DType::kF32;  // of merged slots unless auto_dtype
  bool auto_dtype = true;     // the type of the parts; F32 where they differ
  // kKMergePlus: a similarity, or the quantile of those between the pool's slots.
  double threshold = 0.5;
  bool threshold_is_quantile = false;
  // kBounded: the most that a member's delta-W may be off, relative to its own length; and the least share of its own
  // score that a member with probes keeps.
  std::optional<double> max_error = {};
  double min_score_share = 0.9;
  AdapterRule rule = AdapterRule::kMean;
  double alpha = 0.5;                             // kOpcm
  PoolRefusal on_refusal = PoolRefusal::kReject;  // kBounded: of the new one, or the least used slot goes

  bool operator==(const PoolSettings&) const = default;
};
// kInvalidArgument naming the setting and its range.
Status CheckPoolSettings(const PoolSettings& settings);

struct PoolMember {
  std::string id;
  std::string digest = {};               // of what was added, as PeftAdapter::Digest; "" = not known (older files)
  std::string root = {};                 // where it was added from, as that was given; "" = not known
  double norm = 0;                       // |delta-W| of what was added under the id; 0 of what is never merged
  double distance_at_most = 0;           // |slot - delta-W|: proven. Exact, but for rounding, until a later merge
  double distance_estimate = 0;          // the same by sketches, within what is proven
  size_t sketch_row = 0;                 // in the slot's file
  std::optional<double> own_score = {};  // on its probes: with its own adapter
  std::optional<double> score = {};      // and with the slot

  bool operator==(const PoolMember&) const = default;
};

struct PoolSlot {
  std::string name;         // of its directory below slots/: six digits or more, never used again
  std::string digest;       // of the adapter in it, as PeftAdapter::Digest
  std::string text_digest;  // of the files of its text; "" = none. Only what agrees is merged
  std::string whole;        // why it is never merged; "" = it may be
  uint64_t bytes = 0;       // of its tensors
  uint64_t n_merged = 0;    // adapters that went into it, also those that are members no more
  double norm = 0;          // |slot|
  double sum_of_norms = 0;  // of what went in
  double opcm_scale = 1;
  // |slot - mean of all that went in|, at most (kMean): cutting and rounding of all merges. The best adapter of its
  // rank for that mean is at most as far from the mean, so the slot is at most twice this from it.
  double mean_distance_at_most = 0;
  double discarded_share = 0;  // energy that the last merge cut off, of the target's
  uint64_t uses = 0;           // requests counted
  std::vector<PoolMember> members;
  std::vector<PoolMember> former;  // without an id: what is in the slot still, each content once; at most n_merged
  std::map<std::string, double> similarities;  // to other slots, by name, where known

  // Why its files are not what they were: found by whoever looks, not kept. "" = nothing is known of that. Damaged, it
  // is merged with nothing; its ids are in it until they are removed or added again.
  std::string damage = {};

  // The record of a content that is in it: a member or a former one. nullptr = it is not, as far as is known.
  const PoolMember* RecordOrNull(std::string_view content_digest, std::string_view content_text_digest) const;
  bool operator==(const PoolSlot&) const = default;
};

struct PoolState {
  PoolSettings settings;
  uint64_t next_slot = 1;
  uint64_t n_added = 0, n_merges = 0, n_refusals = 0, n_evictions = 0;  // since it was made; evictions of slots
  std::vector<PoolSlot> slots;                                          // in the order of their names

  uint64_t UsedBytes() const;
  size_t Damaged() const;                                 // slots
  const PoolSlot* FindOrNull(std::string_view id) const;  // the slot that answers for `id`
  bool operator==(const PoolState&) const = default;
};

// Takes `id` out of its slot, which remembers its content, and the slot with its last id; false when it is in none.
bool DropMember(std::string_view id, PoolState& state);

// kInvalidArgument: empty, more than 256 bytes, not UTF-8, or with control characters.
Status CheckPoolId(std::string_view id);

std::string DumpPoolState(const PoolState& state);
// Any bytes. What it accepts has unique ids and slots, known settings, and figures that are finite and not negative.
// The only errors are kCorrupt (no JSON, another digest, a field that is missing, of another type or out of range),
// kUnsupported (a later version) and kResourceExhausted (ParseJson's limits).
Result<PoolState> ParsePoolState(std::string_view text);

}  // namespace df

#endif  // DELTAFOLD_MERGE_POOL_STATE_H_
