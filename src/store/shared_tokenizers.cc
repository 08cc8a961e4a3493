#include "store/shared_tokenizers.h"

#include <utility>

namespace df {
namespace {

struct Charged {
  std::shared_ptr<void> charge;  // ends after the memory that it stands for
  std::shared_ptr<const Tokenizer> tokenizer;
};

}  // namespace

std::shared_ptr<const Tokenizer> SharedTokenizers::FindOrNull(const Tokenizer::FileDigest& digest) {
  const std::scoped_lock lock(mutex_);
  const auto found = tokenizers_.find(digest);
  return found == tokenizers_.end() ? nullptr : found->second.lock();
}

Result<std::shared_ptr<const Tokenizer>> SharedTokenizers::Load(const std::string& path,
                                                                const std::shared_ptr<const Tokenizer>& known,
                                                                Status& no_room) {
  bool is_known = false;
  const auto find = [&](const Tokenizer::FileDigest& digest) {
    auto found = known != nullptr && known->file_digest() == digest ? known : FindOrNull(digest);
    is_known = found != nullptr;
    return found;
  };
  DF_ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer, Tokenizer::LoadOrFind(path, find));
  if (is_known) return tokenizer;
  Result<std::shared_ptr<void>> charge = charge_(tokenizer->memory_bytes());
  if (!charge.ok()) return no_room = charge.status();
  auto charged = std::make_shared<Charged>(Charged{.charge = *std::move(charge), .tokenizer = std::move(tokenizer)});
  const Tokenizer* handle = charged->tokenizer.get();
  std::shared_ptr<const Tokenizer> shared(std::move(charged), handle);
  std::shared_ptr<const Tokenizer> other;  // somebody was faster: his is taken, and this one ends without the lock
  const std::scoped_lock lock(mutex_);
  std::erase_if(tokenizers_, [](const auto& one) { return one.second.expired(); });
  std::weak_ptr<const Tokenizer>& entry = tokenizers_[handle->file_digest()];
  other = entry.lock();
  if (other != nullptr) return other;
  entry = shared;
  return shared;
}

TokenizerLoader SharedTokenizers::Loader(Status& no_room) {
  return [self = shared_from_this(), &no_room](const std::string& path, const std::shared_ptr<const Tokenizer>& known) {
    return self->Load(path, known, no_room);
  };
}

}  // namespace df
