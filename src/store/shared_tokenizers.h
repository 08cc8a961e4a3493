// Tokenizers of variants: one for all whose tokenizer.json has the same bytes, counted against the budget of variants
// for as long as somebody has it.
#ifndef DELTAFOLD_STORE_SHARED_TOKENIZERS_H_
#define DELTAFOLD_STORE_SHARED_TOKENIZERS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "text/model_text.h"

namespace df {

// Thread-safe.
class SharedTokenizers : public std::enable_shared_from_this<SharedTokenizers> {
 public:
  // Counts bytes until what it answers goes; an error refuses them. May block; called without a lock.
  using Charge = std::function<Result<std::shared_ptr<void>>(uint64_t bytes)>;
  explicit SharedTokenizers(Charge charge) : charge_(std::move(charge)) {}

  // The one that somebody has, or `known` (the base's, which is not counted; may be null), when it was read from the
  // same bytes; else it is read and counted. The only errors are those of Tokenizer::Load and of the charge,
  // which `no_room` gets as well: it is none of the file's.
  Result<std::shared_ptr<const Tokenizer>> Load(const std::string& path, const std::shared_ptr<const Tokenizer>& known,
                                                Status& no_room);
  // Load, for as long as this and `no_room` live.
  TokenizerLoader Loader(Status& no_room);

 private:
  std::shared_ptr<const Tokenizer> FindOrNull(const Tokenizer::FileDigest& digest);

  const Charge charge_;
  std::mutex mutex_;
  std::map<Tokenizer::FileDigest, std::weak_ptr<const Tokenizer>> tokenizers_;
};

}  // namespace df

#endif  // DELTAFOLD_STORE_SHARED_TOKENIZERS_H_
