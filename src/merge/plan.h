// What a merge will write: every tensor with its settings, dtype and place. Everything that can be refused without
// looking at a value is refused here.
#ifndef DELTAFOLD_MERGE_PLAN_H_
#define DELTAFOLD_MERGE_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "format/safetensors.h"
#include "merge/method.h"
#include "merge/recipe.h"
#include "merge/sources.h"
#include "merge/vocabulary.h"

namespace df::merge {

struct OutputTensor {
  Slot slot;  // with the output's rows
  DType dtype = DType::kBf16;
  Settings settings;
  size_t shard = 0, place = 0;  // among the shards, and among that one's specs

  size_t elements() const { return slot.d_out * slot.d_in; }
  uint64_t bytes() const { return uint64_t{elements()} * DTypeBytes(dtype); }
  bool IsOfVocabulary() const { return slot.kind == SlotKind::kEmbedding || slot.kind == SlotKind::kHead; }
};

struct OutputShard {
  std::string file_name;
  std::vector<TensorSpec> specs;
};

struct MergePlan {
  const Method* method = nullptr;
  std::vector<OutputTensor> tensors;  // in the order of computation
  std::vector<OutputShard> shards;
  Vocabulary vocabulary;
  bool tied = false;
  uint64_t read_bytes = 0, written_bytes = 0;  // of weights, once each
  uint64_t memory_bytes = 0;                   // anonymous, at most, for this and the method's own
};

// `recipe` is complete, `sources` are its. The only errors are those of SettingsFor and PlanVocabulary.
Result<MergePlan> PlanMerge(const Recipe& recipe, const MergeSources& sources, uint64_t max_shard_bytes);

}  // namespace df::merge

#endif  // DELTAFOLD_MERGE_PLAN_H_
