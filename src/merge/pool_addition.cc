#include "merge/pool_addition.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "format/checkpoint.h"
#include "format/message.h"
#include "format/peft_tensors.h"
#include "merge/adapter_similarity.h"
#include "merge/adapter_writer.h"

namespace df {
namespace {

std::string SlotName(uint64_t number) {
  std::string digits = std::to_string(number);
  return std::string(digits.size() < 6 ? 6 - digits.size() : 0, '0') + digits;
}

std::string Fixed(double value) {
  std::string text = std::to_string(std::round(value * 1e4) / 1e4);
  return text.substr(0, text.size() - 2);
}

std::string BaseName(const PeftAdapter& adapter) {
  const Result<std::string> name = JsonStringOr(adapter.config_json(), "base_model_name_or_path", "");
  return name.ok() ? *name : "";
}

struct ModuleShape {
  size_t d_out = 0, d_in = 0;
};
std::map<std::string, ModuleShape> ShapesOf(const PeftAdapter& adapter) {
  std::map<std::string, ModuleShape> shapes;
  const auto parts = ListAdapterParts(adapter.file());
  if (!parts.ok()) return shapes;
  for (const auto& [path, module] : *parts) {
    const TensorView* a = module.ViewOrNull(AdapterPart::kA);
    const TensorView* b = module.ViewOrNull(AdapterPart::kB);
    if (a != nullptr && b != nullptr) shapes[path] = {.d_out = b->shape[0], .d_in = a->shape[1]};
  }
  return shapes;
}

double Quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

}  // namespace

uint64_t PoolAddition::FreeBytes() const {
  const uint64_t used = next_.UsedBytes();
  return settings().budget_bytes - std::min(used, settings().budget_bytes);
}

Status PoolAddition::Read(const std::string& adapter_directory) {
  DF_ASSIGN_OR_RETURN(source_, ResolveModelDirectory(adapter_directory));
  DF_ASSIGN_OR_RETURN(adapter_, PeftAdapter::Open(source_));
  DF_ASSIGN_OR_RETURN(digest_, adapter_->Digest());
  DF_ASSIGN_OR_RETURN(text_digest_, DigestOfServedFiles(source_));
  bytes_ = TensorBytes(*adapter_);
  whole_ = WhyNotMerged(*adapter_);
  if (!whole_.empty()) return Status::Ok();
  DF_ASSIGN_OR_RETURN(factors_, ReadFactors(threads_, *adapter_));
  if (factors_.SquaredNorm() == 0) whole_ = "a delta-W of zero";
  return Status::Ok();
}

bool PoolAddition::IsSound(PoolSlot& slot) {
  if (slot.damage.empty() && !pool_.IsSound(slot.name)) {
    slot.damage = std::ranges::find(pool_.state().slots, slot.name, &PoolSlot::name)->damage;
  }
  return slot.damage.empty();
}

Status PoolAddition::CheckShapes() {
  const auto shapes = ShapesOf(*adapter_);
  for (PoolSlot& slot : next_.slots) {
    if (!slot.damage.empty()) continue;
    const auto other = PeftAdapter::Open(pool_.DirectoryOf(slot.name));
    if (!other.ok() && !IsSound(slot)) continue;
    DF_RETURN_IF_ERROR(other.status());
    for (const auto& [path, shape] : ShapesOf(**other)) {
      const auto found = shapes.find(path);
      if (found == shapes.end() || (found->second.d_out == shape.d_out && found->second.d_in == shape.d_in)) continue;
      return FailedPrecondition("module " + Quoted(path) + " is " + std::to_string(found->second.d_out) + " x " +
                                std::to_string(found->second.d_in) + ", in slot " + slot.name + " it is " +
                                std::to_string(shape.d_out) + " x " + std::to_string(shape.d_in) +
                                ": the pool's adapters are made for another base");
    }
  }
  return Status::Ok();
}

// What a comparison needs. The norms are those of the factors that the slot was written with.
Result<PoolAddition::SlotView> PoolAddition::ViewSlot(const PoolSlot& slot) const {
  SlotView view;
  DF_ASSIGN_OR_RETURN(view.adapter, PeftAdapter::Open(pool_.DirectoryOf(slot.name)));
  DF_ASSIGN_OR_RETURN(view.factors, ListFactors(*view.adapter));
  Result<PoolSketches> sketches = ReadSketches(pool_.DirectoryOf(slot.name));
  if (sketches.ok()) view.squared_norms = std::move(sketches->squared_norms);
  if (view.squared_norms.size() == view.factors.size()) return view;
  // Written before there were any, or damaged, which is an error for who merges into it.
  DF_ASSIGN_OR_RETURN(const AdapterFactors factors, ReadFactors(threads_, *view.adapter));
  view.squared_norms = SquaredNormsOf(factors);
  return view;
}

Result<double> PoolAddition::SimilarityTo(const SlotView& slot, const AdapterFactors& factors) const {
  DF_ASSIGN_OR_RETURN(const double similarity, SimilarityOfStored(threads_, slot.factors, slot.squared_norms, factors));
  DF_RETURN_IF_ERROR(slot.adapter->file().file().CheckIntact());
  return similarity;
}

// What a merge needs: all of it, as it was written.
Result<AdapterFactors> PoolAddition::ReadSlot(const PoolSlot& slot) const {
  DF_ASSIGN_OR_RETURN(const SlotView view, ViewSlot(slot));
  DF_ASSIGN_OR_RETURN(const std::string digest, view.adapter->Digest());
  if (digest != slot.digest) {
    return Corrupt("slot " + slot.name + " of the pool has digest " + digest + ", pool.json says " + slot.digest +
                   ": its files were changed; evict it");
  }
  return ReadFactors(threads_, *view.adapter, view.squared_norms);
}

DType PoolAddition::MergedType(DType slot) const {
  if (!settings().auto_dtype) return settings().dtype;
  return slot == factors_.dtype ? slot : DType::kF32;
}

// What a merge with `slot` will take at most.
uint64_t PoolAddition::MergedBytes(const SlotView& slot) const {
  uint64_t elements = 0;
  // `other`: the rank of the module on the other side, 0 where that lacks it.
  const auto add = [&](size_t d_in, size_t d_out, size_t rank, size_t other) {
    uint64_t merged = std::max(rank, other);
    if (settings().rank > 0) merged = std::min({settings().rank, rank + other, d_in, d_out});
    elements += merged * (d_in + d_out);
  };
  std::set<std::string_view> paths;
  for (const StoredFactors& module : slot.factors) {
    paths.insert(module.path);
    const auto other = factors_.modules.find(module.path);
    add(module.d_in(), module.d_out(), module.rank(), other != factors_.modules.end() ? other->second.rank() : 0);
  }
  for (const auto& [path, pair] : factors_.modules) {
    if (!paths.contains(path)) add(pair.d_in(), pair.d_out(), pair.rank(), 0);
  }
  return elements * DTypeBytes(MergedType(WidestType(slot.factors)));
}

// Similarity to every slot that could take it in. The best one is the most similar with room for it whose files are as
// they were written; those of others are not looked at so closely.
Status PoolAddition::Compare() {
  if (!whole_.empty()) return Status::Ok();
  const uint64_t free_bytes = FreeBytes();
  std::vector<PoolSlot*> with_room;
  for (PoolSlot& slot : next_.slots) {
    if (!slot.damage.empty() || !slot.whole.empty() || slot.text_digest != text_digest_) continue;
    Result<SlotView> read = ViewSlot(slot);
    if (!read.ok() && !IsSound(slot)) continue;
    DF_ASSIGN_OR_RETURN(const SlotView view, std::move(read));
    const Result<double> similarity = SimilarityTo(view, factors_);
    if (!similarity.ok() && !IsSound(slot)) continue;
    DF_RETURN_IF_ERROR(similarity.status());
    similarities_[slot.name] = *similarity;
    if (const uint64_t needs = MergedBytes(view), room = slot.bytes + free_bytes; needs > room) {
      if (!why_not_merged_.empty() && needs - room >= least_lack_) continue;
      least_lack_ = needs - room;
      why_not_merged_ = "merged with slot " + slot.name + " it would take " + std::to_string(needs) +
                        " bytes, that has " + std::to_string(room) + " with what is left";
      continue;
    }
    with_room.push_back(&slot);
  }
  // The most similar first, of equal ones the first slot.
  std::ranges::sort(with_room, {},
                    [&](const PoolSlot* slot) { return std::pair(-similarities_.at(slot->name), slot); });
  for (PoolSlot* slot : with_room) {
    if (IsSound(*slot)) {
      best_ = slot->name;
      break;
    }
    similarities_.erase(slot->name);
  }
  return Status::Ok();
}

bool PoolAddition::TakesFreeSlot() const {
  if (settings().policy != PoolPolicy::kKMergePlus) return true;
  double threshold = settings().threshold;
  if (settings().threshold_is_quantile) {
    std::vector<double> known;
    for (const PoolSlot& slot : next_.slots) {
      for (const auto& [name, similarity] : slot.similarities) known.push_back(similarity);
    }
    if (known.empty()) return true;
    threshold = Quantile(std::move(known), settings().threshold);
  }
  return best_.empty() || similarities_.at(best_) < threshold;
}

// The slot that answers for the id with this content already.
PoolSlot* PoolAddition::OwnSlotOrNull() {
  for (PoolSlot& slot : next_.slots) {
    const auto own = std::ranges::find(slot.members, id_, &PoolMember::id);
    if (own == slot.members.end() || slot.text_digest != text_digest_) continue;
    const bool is_same = own->digest == digest_ || (slot.n_merged == 1 && slot.digest == digest_);
    if (is_same && IsSound(slot)) return &slot;
  }
  return nullptr;
}

// The slot that has this content in it, with the id as its member: merged again, it would take from the others' shares.
Result<const PoolSlot*> PoolAddition::JoinOrNull() {
  for (PoolSlot& slot : next_.slots) {
    const PoolMember* const record = slot.RecordOrNull(digest_, text_digest_);
    if (record == nullptr || !IsSound(slot)) continue;
    PoolMember member = *record;
    member.id = id_;
    member.digest = digest_;
    member.root = root_;
    member.own_score = member.score = own_score_;
    if (slot.n_merged > 1 && options_.score) {
      DF_ASSIGN_OR_RETURN(member.score, options_.score(id_, pool_.DirectoryOf(slot.name)));
    }
    if (slot.n_merged > 1 && !CheckMember(member).ok()) continue;
    std::erase_if(slot.former, [&](const PoolMember& former) { return former.digest == digest_; });
    slot.members.push_back(std::move(member));
    return &slot;
  }
  return static_cast<const PoolSlot*>(nullptr);
}

Result<PoolAdded> PoolAddition::Run(const std::string& adapter_directory) {
  DF_RETURN_IF_ERROR(CheckPoolId(id_));
  if (next_.FindOrNull(id_) != nullptr && !options_.replace) {
    return FailedPrecondition("the id " + Quoted(id_) + " is in the pool already");
  }
  DF_RETURN_IF_ERROR(Read(adapter_directory));
  if (PoolSlot* own = OwnSlotOrNull(); own != nullptr) {
    std::ranges::find(own->members, id_, &PoolMember::id)->root = root_;
    added_.slot = own->name;
    added_.shared = true;
    DF_RETURN_IF_ERROR(Commit(*own));
    return std::move(added_);
  }
  DropMember(id_, next_);
  DF_RETURN_IF_ERROR(CheckShapes());
  if (options_.score) {
    DF_ASSIGN_OR_RETURN(own_score_, options_.score(id_, source_));
  }
  ++next_.n_added;
  DF_ASSIGN_OR_RETURN(const PoolSlot* joined, JoinOrNull());
  if (joined != nullptr) {
    added_.slot = joined->name;
    added_.shared = true;
    DF_RETURN_IF_ERROR(Commit(*joined));
    return std::move(added_);
  }
  const bool has_room = bytes_ <= FreeBytes();
  if (!has_room || settings().policy == PoolPolicy::kKMergePlus) DF_RETURN_IF_ERROR(Compare());
  if (has_room && (!whole_.empty() || TakesFreeSlot())) return TakeSlot();
  if (!best_.empty()) return Merge();
  const std::string needs = "the adapter takes " + std::to_string(bytes_) + " bytes, the pool has " +
                            std::to_string(FreeBytes()) + " of " + std::to_string(settings().budget_bytes) + " left";
  const std::string why = why_not_merged_.empty()
                              ? "none is whole, may be merged and brings the same files of a tokenizer and a template"
                              : why_not_merged_;
  return Refused(ResourceExhausted(whole_.empty() ? needs + ", and no slot that it could be merged into: " + why
                                                  : needs + ", and it cannot be merged: it has " + whole_));
}

Result<PoolAdded> PoolAddition::TakeSlot() {
  made_ = {};
  made_.name = SlotName(next_.next_slot++);
  made_.digest = digest_;
  made_.text_digest = text_digest_;
  made_.whole = whole_;
  made_.bytes = bytes_;
  made_.n_merged = 1;
  made_.norm = made_.sum_of_norms = std::sqrt(factors_.SquaredNorm());
  made_.similarities = similarities_;
  // As used as the least used one: the oldest of those goes first, not what has just come.
  for (size_t i = 0; i < next_.slots.size(); ++i) {
    made_.uses = i == 0 ? next_.slots[i].uses : std::min(made_.uses, next_.slots[i].uses);
  }
  made_.members = {
      {.id = id_, .digest = digest_, .root = root_, .norm = made_.norm, .own_score = own_score_, .score = own_score_}};
  if (!best_.empty()) added_.similarity = similarities_.at(best_);
  Step("write slot");
  DF_ASSIGN_OR_RETURN(AtomicDirectory directory,
                      AtomicDirectory::Create(pool_.DirectoryOf(made_.name), {.replace = true}));
  DF_RETURN_IF_ERROR(CopyAdapter(*adapter_, directory.path()));
  DF_RETURN_IF_ERROR(CopyServedFiles(source_, directory.path()));
  if (whole_.empty()) {
    const AdapterSketch sketch = SketchOf(threads_, factors_);
    DF_RETURN_IF_ERROR(WriteSketches({.mean = sketch, .members = {sketch}, .squared_norms = SquaredNormsOf(factors_)},
                                     directory.path()));
  }
  return Publish(std::move(directory));
}

// The slot with what was added: its figures, and each member's distance to it.
Status PoolAddition::DescribeMerged(const PoolSlot& former, const AdapterMerge& merge, PoolSketches& sketches) {
  const double n = static_cast<double>(former.n_merged) + 1, added_norm = std::sqrt(factors_.SquaredNorm());
  made_ = former;
  made_.name = SlotName(next_.next_slot++);
  made_.similarities.clear();
  made_.bytes = TensorBytes(merge.merged);
  made_.n_merged = former.n_merged + 1;
  made_.norm = std::sqrt(merge.merged.SquaredNorm());
  made_.sum_of_norms += added_norm;
  made_.opcm_scale = merge.opcm_scale;
  made_.discarded_share = merge.energy > 0 ? merge.discarded_energy / merge.energy : 0;
  made_.mean_distance_at_most = former.mean_distance_at_most * (1 - 1 / n) + merge.lost;
  const AdapterSketch now = SketchOf(threads_, merge.merged), added = SketchOf(threads_, factors_);
  for (size_t i = 0; i < kSketchElements; ++i) {
    sketches.mean[i] += static_cast<float>((added[i] - sketches.mean[i]) / n);
  }
  std::erase_if(made_.former, [&](const PoolMember& member) { return member.digest == digest_; });
  std::vector<PoolMember*> records;
  for (PoolMember& member : made_.members) records.push_back(&member);
  for (PoolMember& member : made_.former) records.push_back(&member);
  for (PoolMember* record : records) {
    PoolMember& member = *record;
    if (former.n_merged == 1) member.digest = former.digest;
    if (member.sketch_row >= sketches.members.size()) {
      return Corrupt("slot " + former.name + " has no sketch of " + Quoted(member.id));
    }
    member.distance_at_most += merge.moved;
    const double square = made_.norm * made_.norm + member.norm * member.norm -
                          2 * InnerProduct(now, sketches.members[member.sketch_row]);
    member.distance_estimate =
        std::clamp(std::sqrt(std::max(square, 0.0)),
                   std::min(std::abs(made_.norm - member.norm), member.distance_at_most), member.distance_at_most);
  }
  // The members of a slot of one are where the slot is: what moved it is their distance, which needs no estimate.
  if (former.n_merged == 1) {
    for (PoolMember& member : made_.members) member.distance_estimate = member.distance_at_most;
  }
  made_.members.push_back({.id = id_,
                           .digest = digest_,
                           .root = root_,
                           .norm = added_norm,
                           .distance_at_most = merge.added_error,
                           .distance_estimate = merge.added_error,
                           .sketch_row = sketches.members.size(),
                           .own_score = own_score_});
  sketches.members.push_back(added);
  return Status::Ok();
}

Status PoolAddition::ScoreMembers(const std::string& directory) {
  for (PoolMember& member : made_.members) {
    if (!options_.score) return Status::Ok();
    std::optional<double> score;
    DF_ASSIGN_OR_RETURN(score, options_.score(member.id, directory));
    member.score = score;
  }
  return Status::Ok();
}

// Whether a slot leaves one of its members good enough; by kBounded alone.
Status PoolAddition::CheckMember(const PoolMember& member) const {
  if (settings().policy != PoolPolicy::kBounded) return Status::Ok();
  const std::string who =
      "merging " + Quoted(id_) + " with its most similar slot would leave member " + Quoted(member.id);
  const bool is_scored = member.own_score.has_value() && member.score.has_value();
  if (!is_scored && !settings().max_error) {
    return FailedPrecondition(
        "member " + Quoted(member.id) +
        " has neither a probe here nor a largest error: give its probe, or the pool a --max-error");
  }
  if (is_scored && *member.score < settings().min_score_share * *member.own_score) {
    return FailedPrecondition(who + " a score of " + Fixed(*member.score) + ", its own adapter's is " +
                              Fixed(*member.own_score) + " and " + Fixed(settings().min_score_share) +
                              " of it must stay");
  }
  const double error = member.distance_at_most / member.norm;
  if (!is_scored && error > *settings().max_error) {
    return FailedPrecondition(who + " with a delta-W that is off by up to " + Fixed(error) +
                              " of its length, at most " + Fixed(*settings().max_error) + " is allowed");
  }
  return Status::Ok();
}

Status PoolAddition::CheckMembers() const {
  for (const PoolMember& member : made_.members) DF_RETURN_IF_ERROR(CheckMember(member));
  return Status::Ok();
}

Result<PoolAdded> PoolAddition::Merge() {
  const auto former = std::ranges::find(next_.slots, best_, &PoolSlot::name);
  Result<PoolSketches> read = ReadSketches(pool_.DirectoryOf(best_));
  if (!read.ok()) return Corrupt("slot " + best_ + " of the pool: " + read.status().message());
  PoolSketches sketches = *std::move(read);
  const auto opened = PeftAdapter::Open(pool_.DirectoryOf(best_));
  if (!opened.ok()) return Corrupt("slot " + best_ + " of the pool: " + opened.status().message());
  const auto& old_adapter = *opened;
  DF_ASSIGN_OR_RETURN(const AdapterFactors best, ReadSlot(*former));
  DF_ASSIGN_OR_RETURN(const AdapterMerge merge, MergeAdapter(threads_, best,
                                                             {.n_merged = former->n_merged,
                                                              .sum_of_norms = former->sum_of_norms,
                                                              .opcm_scale = former->opcm_scale},
                                                             factors_,
                                                             {.rank = settings().rank,
                                                              .rule = settings().rule,
                                                              .alpha = settings().alpha,
                                                              .dtype = MergedType(best.dtype)}));
  DF_RETURN_IF_ERROR(DescribeMerged(*former, merge, sketches));
  sketches.squared_norms = SquaredNormsOf(merge.merged);
  if (!options_.score) {  // before anything is written
    if (const Status refusal = CheckMembers(); !refusal.ok()) return Refused(refusal);
  }
  Step("write slot");
  DF_ASSIGN_OR_RETURN(AtomicDirectory directory,
                      AtomicDirectory::Create(pool_.DirectoryOf(made_.name), {.replace = true}));
  DF_RETURN_IF_ERROR(WriteAdapter(merge.merged, BaseName(*old_adapter), directory.path()));
  DF_RETURN_IF_ERROR(CopyServedFiles(pool_.DirectoryOf(best_), directory.path()));
  DF_RETURN_IF_ERROR(WriteSketches(sketches, directory.path()));
  DF_RETURN_IF_ERROR(ScoreMembers(directory.path()));
  if (const Status refusal = CheckMembers(); !refusal.ok()) return Refused(refusal);
  {
    DF_ASSIGN_OR_RETURN(const auto written, PeftAdapter::Open(directory.path()));
    DF_ASSIGN_OR_RETURN(made_.digest, written->Digest());
  }
  added_.merged = true;
  added_.similarity = similarities_.at(best_);
  added_.discarded_share = made_.discarded_share;
  ++next_.n_merges;
  next_.slots.erase(former);
  if (settings().policy == PoolPolicy::kKMergePlus && settings().threshold_is_quantile) {
    for (const PoolSlot& slot : next_.slots) {
      if (!slot.damage.empty() || !slot.whole.empty() || slot.text_digest != text_digest_) continue;
      DF_ASSIGN_OR_RETURN(const SlotView other, ViewSlot(slot));
      DF_ASSIGN_OR_RETURN(made_.similarities[slot.name], SimilarityTo(other, merge.merged));
    }
  }
  return Publish(std::move(directory));
}

Result<PoolAdded> PoolAddition::Publish(AtomicDirectory directory) {
  Step("publish slot");
  DF_RETURN_IF_ERROR(directory.Commit());
  added_.slot = made_.name;
  next_.slots.push_back(std::move(made_));
  const Status committed = Commit(next_.slots.back());
  if (committed.ok()) return std::move(added_);
  pool_.Discard(added_.slot);
  return committed;
}

Status PoolAddition::Commit(const PoolSlot& slot) {
  if (options_.accept) DF_RETURN_IF_ERROR(options_.accept(added_, pool_.DirectoryOf(slot.name), slot));
  if (next_ == pool_.state()) return Status::Ok();
  return pool_.Commit(std::move(next_), options_.on_step);
}

// The refusal, or a slot of its own in the place of those that are used least.
Result<PoolAdded> PoolAddition::Refused(const Status& refusal) {
  const bool evicts = settings().policy == PoolPolicy::kBounded && settings().on_refusal == PoolRefusal::kEvict;
  ++next_.n_refusals;
  if (!evicts || bytes_ > settings().budget_bytes) {
    pool_.state_.n_refusals = next_.n_refusals;  // on disk with the next change
    return refusal;
  }
  while (bytes_ > FreeBytes()) {
    const auto least = std::ranges::min_element(next_.slots, {}, [this](const PoolSlot& slot) {
      if (!slot.damage.empty()) return -1.0;
      return options_.use_of ? options_.use_of(slot) : static_cast<double>(slot.uses);
    });
    for (const PoolMember& member : least->members) added_.evicted_ids.push_back(member.id);
    similarities_.erase(least->name);
    next_.slots.erase(least);
    ++next_.n_evictions;
  }
  best_.clear();
  return TakeSlot();
}

Result<PoolAdded> AdapterPool::Add(ThreadPool& pool, const std::string& id, const std::string& adapter_directory,
                                   const PoolAddOptions& options) {
  return PoolAddition(*this, pool, id, options).Run(adapter_directory);
}

}  // namespace df
