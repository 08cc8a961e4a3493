// Who holds which block of the KV pool: counts of holders, the free blocks, and leases on them. Full blocks that nobody
// holds any more are remembered by what they hold (prefix_index.h) until the room is needed. The memory itself is
// model/kv_pool.h.
#ifndef DELTAFOLD_ENGINE_KV_CACHE_H_
#define DELTAFOLD_ENGINE_KV_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/prefix_index.h"
#include "kernels/attention.h"

namespace df {

constexpr size_t KvBlocksFor(size_t n_tokens) {
  return (n_tokens + kernels::kKvBlockTokens - 1) / kernels::kKvBlockTokens;
}

// Remembered blocks at the beginning of a sequence.
struct PrefixMatch {
  std::vector<int32_t> blocks;
  size_t n_held = 0;  // of them, held by somebody: taking these costs no free block
};

// The blocks of a pool: held by leases, idle (remembered, held by nobody) or empty. Empty ones go first, last in, first
// out, lowest id first at the start: pool memory that was never needed is never touched. Then the idle ones, least
// recently held first. Of a sequence the last block is given back first, so that what others can build on stays
// longest. Engine thread only.
class KvBlocks {
 public:
  explicit KvBlocks(size_t n_blocks);
  KvBlocks(const KvBlocks&) = delete;
  KvBlocks& operator=(const KvBlocks&) = delete;

  size_t n_total() const { return blocks_.size(); }
  size_t n_free() const { return empty_.size() + n_idle_; }  // to be had: empty and idle ones
  size_t n_idle() const { return n_idle_; }

  // The longest remembered beginning of `tokens`, at most `max_blocks`; rewrites `match`. A look: nothing changes.
  void FindPrefix(const std::shared_ptr<const PrefixDomain>& domain, const KnownTokens& tokens, size_t max_blocks,
                  PrefixMatch& match) const;

  // The first thing that is wrong with lists and counts, given all leases' blocks together; "" = nothing. For tests.
  std::string Audit(const std::vector<int32_t>& held) const;

 private:
  friend class KvLease;
  struct Block {
    uint32_t n_holders = 0;
    int32_t newer = kNoBlock, older = kNoBlock;  // among the idle ones
  };

  Block& At(int32_t block) { return blocks_[static_cast<size_t>(block)]; }
  int32_t Take();  // n_free() > 0
  void Hold(int32_t block);
  void Release(int32_t block);
  void Unlink(int32_t block);

  std::vector<Block> blocks_;
  std::vector<int32_t> empty_;
  int32_t oldest_ = kNoBlock, newest_ = kNoBlock;  // idle
  size_t n_idle_ = 0;
  PrefixIndex index_;
};

// The blocks of one sequence, in order of position; they go back when the lease ends. Move-only.
class KvLease {
 public:
  explicit KvLease(KvBlocks& blocks) : blocks_(&blocks) {}
  KvLease(KvLease&& other) noexcept : blocks_(other.blocks_), held_(std::move(other.held_)), n_known_(other.n_known_) {
    other.held_.clear();
    other.n_known_ = 0;
  }
  KvLease& operator=(KvLease&&) = delete;
  ~KvLease() { Release(); }

  // Grows so that positions [0, n_tokens) have a block: all of them or, when the pool has too few, none.
  bool TryCover(size_t n_tokens);
  // Shares the blocks of a match that was made since the last change; the lease is empty.
  void Adopt(const PrefixMatch& match);
  // Remembers the full blocks among the first `n_tokens` positions, whose keys and values are computed. A block that is
  // known already takes the place of the own one: same content, held once.
  void Remember(const std::shared_ptr<const PrefixDomain>& domain, const KnownTokens& tokens, size_t n_tokens);
  void Release();

  // [n_blocks()] block ids; valid until the lease changes.
  const int32_t* block_table() const { return held_.data(); }
  size_t n_blocks() const { return held_.size(); }

 private:
  KvBlocks* blocks_;
  std::vector<int32_t> held_;
  size_t n_known_ = 0;  // leading blocks that are indexed
};

}  // namespace df

#endif  // DELTAFOLD_ENGINE_KV_CACHE_H_
