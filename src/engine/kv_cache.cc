#include "engine/kv_cache.h"

#include <algorithm>

#include "base/check.h"

namespace df {

KvBlocks::KvBlocks(size_t n_blocks) : blocks_(n_blocks), index_(n_blocks) {
  empty_.reserve(n_blocks);
  for (size_t i = n_blocks; i > 0; --i) empty_.push_back(static_cast<int32_t>(i - 1));
}

void KvBlocks::FindPrefix(const std::shared_ptr<const PrefixDomain>& domain, const KnownTokens& tokens,
                          size_t max_blocks, PrefixMatch& match) const {
  match.blocks.clear();
  match.n_held = 0;
  int32_t previous = kNoBlock;
  while (match.blocks.size() < max_blocks) {
    const BlockTokens wanted = TokensOfBlock(tokens, match.blocks.size());
    previous = index_.FindOrNone({.domain = domain, .previous = previous, .tokens = wanted});
    if (previous == kNoBlock) return;
    if (blocks_[static_cast<size_t>(previous)].n_holders > 0) ++match.n_held;
    match.blocks.push_back(previous);
  }
}

int32_t KvBlocks::Take() {
  DF_CHECK(n_free() > 0);
  int32_t block = kNoBlock;
  if (!empty_.empty()) {
    block = empty_.back();
    empty_.pop_back();
  } else {
    block = oldest_;
    Unlink(block);
    index_.Erase(block);
  }
  At(block).n_holders = 1;
  return block;
}

void KvBlocks::Hold(int32_t block) {
  if (At(block).n_holders++ == 0) Unlink(block);
}

void KvBlocks::Release(int32_t block) {
  Block& released = At(block);
  DF_CHECK(released.n_holders > 0);
  if (--released.n_holders > 0) return;
  if (!index_.Contains(block)) {
    empty_.push_back(block);
    return;
  }
  released.older = newest_;
  (newest_ == kNoBlock ? oldest_ : At(newest_).newer) = block;
  newest_ = block;
  ++n_idle_;
}

void KvBlocks::Unlink(int32_t block) {
  Block& idle = At(block);
  (idle.older == kNoBlock ? oldest_ : At(idle.older).newer) = idle.newer;
  (idle.newer == kNoBlock ? newest_ : At(idle.newer).older) = idle.older;
  idle.older = idle.newer = kNoBlock;
  --n_idle_;
}

std::string KvBlocks::Audit(const std::vector<int32_t>& held) const {
  std::vector<uint32_t> n_holders(blocks_.size(), 0);
  for (const int32_t block : held) ++n_holders[static_cast<size_t>(block)];
  std::vector<bool> seen(blocks_.size(), false);
  const auto free_once = [&](int32_t block) {
    const auto at = static_cast<size_t>(block);
    const bool ok = !seen[at] && blocks_[at].n_holders == 0;
    seen[at] = true;
    return ok;
  };
  for (const int32_t block : empty_) {
    if (!free_once(block) || index_.Contains(block)) return "block " + std::to_string(block) + " is not empty";
  }
  size_t n_idle = 0;
  for (int32_t block = oldest_; block != kNoBlock; block = blocks_[static_cast<size_t>(block)].newer, ++n_idle) {
    if (!free_once(block) || !index_.Contains(block)) return "block " + std::to_string(block) + " is not idle";
  }
  if (n_idle != n_idle_) return "another number of blocks is idle than counted";
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].n_holders != n_holders[i]) return "block " + std::to_string(i) + " counts holders that it has not";
    if (seen[i] == (n_holders[i] > 0)) return "block " + std::to_string(i) + " is lost, or free and held";
  }
  return "";
}

bool KvLease::TryCover(size_t n_tokens) {
  const size_t wanted = KvBlocksFor(n_tokens);
  if (wanted <= held_.size()) return true;
  if (wanted - held_.size() > blocks_->n_free()) return false;
  if (wanted > held_.capacity()) held_.reserve(std::max(wanted, 2 * held_.capacity()));  // first: nothing is lost then
  while (held_.size() < wanted) held_.push_back(blocks_->Take());
  return true;
}

void KvLease::Adopt(const PrefixMatch& match) {
  DF_CHECK(held_.empty());
  held_ = match.blocks;
  for (const int32_t block : held_) blocks_->Hold(block);
  n_known_ = held_.size();
}

void KvLease::Remember(const std::shared_ptr<const PrefixDomain>& domain, const KnownTokens& tokens, size_t n_tokens) {
  for (; n_known_ < n_tokens / kernels::kKvBlockTokens; ++n_known_) {
    const PrefixKey key = {.domain = domain,
                           .previous = n_known_ == 0 ? kNoBlock : held_[n_known_ - 1],
                           .tokens = TokensOfBlock(tokens, n_known_)};
    int32_t& own = held_[n_known_];
    const int32_t known = blocks_->index_.FindOrNone(key);
    if (known == kNoBlock) {
      blocks_->index_.Insert(own, key);
      continue;
    }
    blocks_->Hold(known);
    blocks_->Release(own);
    own = known;
  }
}

void KvLease::Release() {
  while (!held_.empty()) {
    blocks_->Release(held_.back());
    held_.pop_back();
  }
  n_known_ = 0;
}

}  // namespace df
