// Text to token ids and back, exactly as the model's own tokenizer.json says (Hugging Face `tokenizers`, over rust/).
//
// Input:  tokenizer.json (untrusted), UTF-8 text (untrusted), token ids.
// Output: token ids, UTF-8 text.
// Called by: text/prompt (chat and plain prompts), text/text_stream, engine/session, inspect.
#ifndef DELTAFOLD_TEXT_TOKENIZER_H_
#define DELTAFOLD_TEXT_TOKENIZER_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

struct dft_tokenizer;

namespace df {

// A token that tokenizer.json lists apart from the model's vocabulary. `special` ones are the control tokens: skipped
// when decoding and never produced from text that is not trusted.
struct AddedToken {
  int32_t id = 0;
  std::string text;
  bool special = false;
};

struct EncodeOptions {
  bool add_special_tokens = false;          // also what the file's post-processor adds, mostly BOS in front
  bool parse_special_tokens = false;        // the text of a special token becomes its id; otherwise it stays text
  size_t max_text_bytes = size_t{4} << 20;  // more than a million tokens; takes about 120 bytes for each while it runs
  int64_t max_ms = 20'000;  // a pattern of a hostile file may be quadratic; real ones split 2 MB a second
};

struct DecodeOptions {
  bool skip_special_tokens = true;
};

// Immutable and thread-safe; share one per file.
class Tokenizer {
 public:
  // At most 256 MiB and 64 levels deep. The only errors are those of reading the file, kResourceExhausted (too large,
  // too deep), kUnsupported (BPE dropout: ids would be random) and kCorrupt: not a tokenizer, an unknown part, no
  // vocabulary, two tokens with one id, an id above 2^24, an added token that is empty or whose id is not its own.
  // `known` (may be null) is returned when it was read from the same bytes.
  static Result<std::shared_ptr<const Tokenizer>> Load(const std::string& path,
                                                       std::shared_ptr<const Tokenizer> known = nullptr);
  // As Load, with what `find` (may be empty) knows to be read from the same bytes; it answers null for none.
  using FileDigest = std::array<uint64_t, 2>;  // XXH3-128 of the file
  using Find = std::function<std::shared_ptr<const Tokenizer>(const FileDigest&)>;
  static Result<std::shared_ptr<const Tokenizer>> LoadOrFind(const std::string& path, const Find& find);
  static Result<std::shared_ptr<const Tokenizer>> Parse(std::string_view json);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Ids of `text`, the same as the reference library's (without its truncation and padding).
  // The only errors are kInvalidArgument (not UTF-8; a pattern of the file gives up on this text, for example on a
  // million spaces), kResourceExhausted (text longer than max_text_bytes), kDeadlineExceeded (max_ms) and kCorrupt (the
  // library behind panicked).
  Result<std::vector<int32_t>> Encode(std::string_view text, EncodeOptions options = {}) const;

  // Encode for a text of which parts are a user's: a special token counts only as it is spelled (a normalizer may turn
  // other characters into it), and not when one of `broken_at` (ascending byte offsets into `text`) lies strictly
  // inside it. Added tokens that are not special match as ever.
  Result<std::vector<int32_t>> EncodeBroken(std::string_view text, std::span<const size_t> broken_at,
                                            EncodeOptions options = {}) const;

  // Text of `ids`; bytes that are not UTF-8 become U+FFFD. No clean-up of spaces is done.
  // The only errors are kInvalidArgument (an id without a token) and kCorrupt (the file's decoder fails).
  Result<std::string> Decode(std::span<const int32_t> ids, DecodeOptions options = {}) const;

  // Highest id + 1. Ids below it may be unused.
  int32_t vocab() const { return vocab_; }
  // The id whose token reads `token` in the vocabulary's own spelling (byte-level for many models).
  std::optional<int32_t> IdOrNull(std::string_view token) const;
  // The vocabulary's spelling of `id`; kInvalidArgument for an id without a token.
  Result<std::string> TokenText(int32_t id) const;
  // What `id` adds to a text that has begun: bytes, maybe a part of a character; control tokens as they are spelled.
  // The only errors are kInvalidArgument (an id without a token) and kCorrupt (the file's decoder fails).
  Result<std::string> TokenBytes(int32_t id) const;
  bool IsSpecial(int32_t id) const;
  // Ascending ids.
  const std::vector<AddedToken>& added_tokens() const { return added_tokens_; }
  // What add_special_tokens puts before and behind every text.
  const std::vector<int32_t>& prefix_ids() const { return prefix_ids_; }
  const std::vector<int32_t>& suffix_ids() const { return suffix_ids_; }

  // No text longer than this can be `n_tokens` or fewer: a cheap refusal of prompts that are far too long. SIZE_MAX for
  // tokenizers that may drop or shorten text before splitting it.
  size_t MaxTextBytes(int64_t n_tokens) const;
  const FileDigest& file_digest() const { return digest_; }
  // What this tokenizer occupies, estimated from its tables.
  size_t memory_bytes() const { return memory_bytes_; }

 private:
  friend class DecodeStream;
  explicit Tokenizer(dft_tokenizer* handle) : handle_(handle) {}
  Status ReadTables();
  Result<std::vector<int32_t>> EncodeMarked(std::string_view text, const size_t* broken_at, size_t n_broken,
                                            const EncodeOptions& options) const;

  dft_tokenizer* handle_;  // owned
  FileDigest digest_ = {};
  int32_t vocab_ = 0;
  size_t memory_bytes_ = 0;
  size_t max_bytes_per_token_ = 0;  // 0: not bounded
  std::vector<AddedToken> added_tokens_;
  std::vector<int32_t> prefix_ids_;
  std::vector<int32_t> suffix_ids_;
};

}  // namespace df

#endif  // DELTAFOLD_TEXT_TOKENIZER_H_
