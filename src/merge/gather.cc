#include "merge/gather.h"

namespace df::merge {

// The base first. It is read where the method looks at it, and where rows are matched: it fills what others lack.
std::vector<const MergeSource*> Gatherer::Needed() const {
  std::vector<const MergeSource*> needed;
  const bool is_matched = !plan_.vocabulary.row_of.empty();
  if (sources_.base && (plan_.method->needs_base || is_matched)) needed.push_back(&*sources_.base);
  for (const MergeSource& model : sources_.models) needed.push_back(&model);
  return needed;
}

Result<TensorGroup> Gatherer::Gather(const OutputTensor& tensor) {
  const std::vector<const MergeSource*> needed = Needed();
  made_.resize(needed.size());
  matched_.resize(needed.size());
  std::vector<TensorView> views;
  for (size_t i = 0; i < needed.size(); ++i) {
    DF_ASSIGN_OR_RETURN(views.emplace_back(), ReadTensor(pool_, *needed[i], tensor.slot, made_[i]));
  }
  const bool has_base = needed.size() > sources_.models.size();
  if (tensor.IsOfVocabulary() && !plan_.vocabulary.row_of.empty()) {
    const MatchOptions options{.has_base = has_base, .makes_base = plan_.method->needs_base};
    views = MatchRows(pool_, plan_.vocabulary, options, views, matched_);
  }
  TensorGroup group{.name = tensor.slot.name,
                    .base = {},
                    .models = {views.begin() + (has_base ? 1 : 0), views.end()},
                    .is_linear = tensor.slot.kind == SlotKind::kMatrix || tensor.slot.kind == SlotKind::kHead};
  if (has_base && plan_.method->needs_base) group.base = views.front();
  if (sources_.base) group.base_name = "the base " + sources_.base->name;
  for (const MergeSource& model : sources_.models) group.model_names.push_back("model " + model.name);
  return group;
}

void Gatherer::Drop(const OutputTensor& tensor) {
  for (const MergeSource* source : Needed()) DropTensor(*source, tensor.slot);
  if (!tensor.IsOfVocabulary()) return;
  made_.clear();
  matched_.clear();
}

void Gatherer::Announce(const OutputTensor& tensor) const {
  for (const MergeSource* source : Needed()) AnnounceTensor(*source, tensor.slot);
}

}  // namespace df::merge
