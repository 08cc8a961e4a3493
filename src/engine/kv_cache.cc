#include "engine/kv_cache.h"

namespace df {

KvBlocks::KvBlocks(size_t n_blocks) : n_total_(n_blocks) {
  free_.reserve(n_blocks);
  for (size_t i = n_blocks; i > 0; --i) free_.push_back(static_cast<int32_t>(i - 1));
}

bool KvLease::TryCover(size_t n_tokens) {
  const size_t wanted = KvBlocksFor(n_tokens);
  if (wanted <= held_.size()) return true;
  std::vector<int32_t>& free = blocks_->free_;
  if (wanted - held_.size() > free.size()) return false;
  while (held_.size() < wanted) {
    held_.push_back(free.back());
    free.pop_back();
  }
  return true;
}

void KvLease::Release() {
  // Back in reverse: the next sequence gets them in the same order.
  while (!held_.empty()) {
    blocks_->free_.push_back(held_.back());
    held_.pop_back();
  }
}

}  // namespace df
