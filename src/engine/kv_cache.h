// Who holds which block of the KV pool: a free list and leases on it. The memory itself is model/kv_pool.h.
#ifndef DELTAFOLD_ENGINE_KV_CACHE_H_
#define DELTAFOLD_ENGINE_KV_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/attention.h"

namespace df {

constexpr size_t KvBlocksFor(size_t n_tokens) {
  return (n_tokens + kernels::kKvBlockTokens - 1) / kernels::kKvBlockTokens;
}

// The free blocks of a pool. Last in, first out, lowest id first at the start: pool memory that was never needed is
// never touched. Engine thread only.
class KvBlocks {
 public:
  explicit KvBlocks(size_t n_blocks);
  KvBlocks(const KvBlocks&) = delete;
  KvBlocks& operator=(const KvBlocks&) = delete;

  size_t n_total() const { return n_total_; }
  size_t n_free() const { return free_.size(); }

 private:
  friend class KvLease;
  size_t n_total_;
  std::vector<int32_t> free_;
};

// The blocks of one sequence, in order of position; they go back when the lease ends. Move-only.
class KvLease {
 public:
  explicit KvLease(KvBlocks& blocks) : blocks_(&blocks) {}
  KvLease(KvLease&& other) noexcept : blocks_(other.blocks_), held_(std::move(other.held_)) { other.held_.clear(); }
  KvLease& operator=(KvLease&&) = delete;
  ~KvLease() { Release(); }

  // Grows so that positions [0, n_tokens) have a block: all of them or, when the pool has too few, none.
  bool TryCover(size_t n_tokens);
  void Release();

  // [n_blocks()] block ids; valid until the lease changes.
  const int32_t* block_table() const { return held_.data(); }
  size_t n_blocks() const { return held_.size(); }

 private:
  KvBlocks* blocks_;
  std::vector<int32_t> held_;
};

}  // namespace df

#endif  // DELTAFOLD_ENGINE_KV_CACHE_H_
