// One addition to an adapter pool, step by step. Private to the pool.
#ifndef DELTAFOLD_MERGE_POOL_ADDITION_H_
#define DELTAFOLD_MERGE_POOL_ADDITION_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "base/utf8.h"
#include "merge/adapter_merge.h"
#include "merge/adapter_pool.h"
#include "merge/pool_sketches.h"

namespace df {

class PoolAddition {
 public:
  PoolAddition(AdapterPool& pool, ThreadPool& threads, std::string id, const PoolAddOptions& options)
      : pool_(pool), threads_(threads), id_(std::move(id)), options_(options), next_(pool.state()) {
    const bool is_kept = options.root.size() <= kMaxRootBytes && IsValidUtf8(options.root);
    if (is_kept) root_ = options.root;
  }

  Result<PoolAdded> Run(const std::string& adapter_directory);

 private:
  static constexpr size_t kMaxRootBytes = 4096;

  const PoolSettings& settings() const { return next_.settings; }
  uint64_t FreeBytes() const;
  void Step(std::string_view name) const {
    if (options_.on_step) options_.on_step(name);
  }

  Status Read(const std::string& adapter_directory);
  bool IsSound(PoolSlot& slot);  // reads it
  Status CheckShapes();
  PoolSlot* OwnSlotOrNull();
  Result<const PoolSlot*> JoinOrNull();
  struct SlotView {
    std::shared_ptr<const PeftAdapter> adapter;
    std::vector<StoredFactors> factors;
    std::vector<double> squared_norms;
  };
  Result<SlotView> ViewSlot(const PoolSlot& slot) const;
  Result<double> SimilarityTo(const SlotView& slot, const AdapterFactors& factors) const;
  Result<AdapterFactors> ReadSlot(const PoolSlot& slot) const;
  Status Compare();
  bool TakesFreeSlot() const;
  uint64_t MergedBytes(const SlotView& slot) const;
  DType MergedType(DType slot) const;

  Result<PoolAdded> TakeSlot();
  Result<PoolAdded> Merge();
  Status DescribeMerged(const PoolSlot& former, const AdapterMerge& merge, PoolSketches& sketches);
  Status ScoreMembers(const std::string& directory);
  Status CheckMember(const PoolMember& member) const;
  Status CheckMembers() const;
  Result<PoolAdded> Refused(const Status& refusal);
  Result<PoolAdded> Publish(AtomicDirectory directory);
  Status Commit(const PoolSlot& slot);  // next_, of which the slot is, once it is accepted

  AdapterPool& pool_;
  ThreadPool& threads_;
  const std::string id_;
  const PoolAddOptions& options_;
  PoolState next_;

  // What is added.
  std::string root_;
  std::string source_;  // as given: the folder of its text's files
  std::shared_ptr<const PeftAdapter> adapter_;
  std::string digest_, text_digest_, whole_;
  uint64_t bytes_ = 0;
  AdapterFactors factors_;  // unless whole_
  std::optional<double> own_score_;

  // What it is compared with.
  std::map<std::string, double> similarities_;  // to slots that it could be merged with
  std::string best_;                            // the most similar that has room for it; "" = none
  std::string why_not_merged_;                  // with the slot that lacks the fewest bytes for it
  uint64_t least_lack_ = 0;

  PoolSlot made_;  // what it becomes
  PoolAdded added_;
};

}  // namespace df

#endif  // DELTAFOLD_MERGE_POOL_ADDITION_H_
