// Which blocks of the KV pool hold the keys and values of which tokens, so that a prompt that begins like an earlier
// one need not be computed again.
//
// A block is found by what its content is a function of: the domain (base, generation of the variant, tenant's salt,
// dtype of the cache), the blocks before it, and its 16 tokens. The hash is a chain, seeded by the block before; it
// only finds candidates: domain or predecessor and tokens are compared, so that no collision, made or met, gives a
// wrong hit.
#ifndef DELTAFOLD_ENGINE_PREFIX_INDEX_H_
#define DELTAFOLD_ENGINE_PREFIX_INDEX_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/attention.h"

namespace df {

// What shares keys and values: equal texts do, nothing else does.
struct PrefixDomain {
  std::string text;
  uint64_t hash = 0;
};

struct PrefixDomainParts {
  std::string_view base_fingerprint;
  std::string_view kv_dtype;
  std::string_view generation_digest;  // "" = the base
  std::string_view cache_salt;         // "" = none
};
// Tagged and framed by lengths: no two quadruples give one text.
std::shared_ptr<const PrefixDomain> MakePrefixDomain(const PrefixDomainParts& parts);

// The known tokens of a sequence.
struct KnownTokens {
  std::span<const int32_t> prompt, answer;
};
using BlockTokens = std::array<int32_t, kernels::kKvBlockTokens>;
BlockTokens TokensOfBlock(const KnownTokens& tokens, size_t block);

inline constexpr int32_t kNoBlock = -1;

// A full block: what it holds and where it stands.
struct PrefixKey {
  const std::shared_ptr<const PrefixDomain>& domain;
  int32_t previous = kNoBlock;  // an indexed block; kNoBlock: `tokens` are the first
  BlockTokens tokens;
};

// All memory is taken at the start. Engine thread only.
class PrefixIndex {
 public:
  // Blocks 0 to n_blocks - 1.
  explicit PrefixIndex(size_t n_blocks);

  int32_t FindOrNone(const PrefixKey& key) const;
  // `block` is not indexed, and no other block has this key.
  void Insert(int32_t block, const PrefixKey& key);
  // Blocks behind it are not found any more.
  void Erase(int32_t block);
  bool Contains(int32_t block) const { return entries_[static_cast<size_t>(block)].serial != 0; }

 private:
  struct Entry {
    uint64_t serial = 0;           // never used twice, so that nothing is found behind a block that has gone; 0 = none
    uint64_t previous_serial = 0;  // 0: first of its domain
    uint64_t hash = 0;
    std::shared_ptr<const PrefixDomain> domain;  // of a first block
    BlockTokens tokens = {};
    int32_t next = kNoBlock;  // in its bucket
  };

  uint64_t Hash(const PrefixKey& key) const;
  uint64_t PreviousSerial(const PrefixKey& key) const;
  int32_t& Bucket(uint64_t hash) { return buckets_[hash & (buckets_.size() - 1)]; }

  std::vector<Entry> entries_;    // by block
  std::vector<int32_t> buckets_;  // first block of each; a power of two
  uint64_t last_serial_ = 0;
};

}  // namespace df

#endif  // DELTAFOLD_ENGINE_PREFIX_INDEX_H_
