#include "engine/prefix_index.h"

#include <xxhash.h>

#include <bit>

#include "base/check.h"

namespace df {
namespace {

constexpr std::string_view kTag = "deltafold kv prefix 1";

void AppendFramed(std::string& text, std::string_view part) {
  const uint64_t size = part.size();
  text.append(reinterpret_cast<const char*>(&size), sizeof(size));
  text.append(part);
}

}  // namespace

std::shared_ptr<const PrefixDomain> MakePrefixDomain(const PrefixDomainParts& parts) {
  auto domain = std::make_shared<PrefixDomain>();
  for (const std::string_view part :
       {kTag, parts.base_fingerprint, parts.kv_dtype, parts.generation_digest, parts.cache_salt}) {
    AppendFramed(domain->text, part);
  }
  domain->hash = XXH3_64bits(domain->text.data(), domain->text.size());
  return domain;
}

BlockTokens TokensOfBlock(const KnownTokens& tokens, size_t block) {
  BlockTokens found = {};
  for (size_t i = 0; i < found.size(); ++i) {
    const size_t at = block * found.size() + i;
    found[i] = at < tokens.prompt.size() ? tokens.prompt[at] : tokens.answer[at - tokens.prompt.size()];
  }
  return found;
}

PrefixIndex::PrefixIndex(size_t n_blocks) : entries_(n_blocks), buckets_(std::bit_ceil(n_blocks + 1), kNoBlock) {}

uint64_t PrefixIndex::Hash(const PrefixKey& key) const {
  const uint64_t seed = key.previous == kNoBlock ? key.domain->hash : entries_[static_cast<size_t>(key.previous)].hash;
  return XXH3_64bits_withSeed(key.tokens.data(), sizeof(key.tokens), seed);
}

uint64_t PrefixIndex::PreviousSerial(const PrefixKey& key) const {
  return key.previous == kNoBlock ? 0 : entries_[static_cast<size_t>(key.previous)].serial;
}

int32_t PrefixIndex::FindOrNone(const PrefixKey& key) const {
  const uint64_t hash = Hash(key);
  const uint64_t previous_serial = PreviousSerial(key);
  for (int32_t block = buckets_[hash & (buckets_.size() - 1)]; block != kNoBlock;) {
    const Entry& entry = entries_[static_cast<size_t>(block)];
    if (entry.hash == hash && entry.previous_serial == previous_serial && entry.tokens == key.tokens &&
        (previous_serial != 0 || entry.domain->text == key.domain->text)) {
      return block;
    }
    block = entry.next;
  }
  return kNoBlock;
}

void PrefixIndex::Insert(int32_t block, const PrefixKey& key) {
  DF_CHECK(!Contains(block));
  const uint64_t hash = Hash(key);
  const uint64_t previous_serial = PreviousSerial(key);
  DF_CHECK(key.previous == kNoBlock || previous_serial != 0);
  int32_t& bucket = Bucket(hash);
  entries_[static_cast<size_t>(block)] = {.serial = ++last_serial_,
                                          .previous_serial = previous_serial,
                                          .hash = hash,
                                          .domain = previous_serial == 0 ? key.domain : nullptr,
                                          .tokens = key.tokens,
                                          .next = bucket};
  bucket = block;
}

void PrefixIndex::Erase(int32_t block) {
  DF_CHECK(Contains(block));
  Entry& entry = entries_[static_cast<size_t>(block)];
  int32_t* link = &Bucket(entry.hash);
  while (*link != block) link = &entries_[static_cast<size_t>(*link)].next;
  *link = entry.next;
  entry = {};
}

}  // namespace df
