#include "text/tokenizer.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "base/atomic_file.h"
#include "base/json.h"
#include "text/border.h"

namespace df {
namespace {

// The largest known tokenizer.json has 35 MB; reading one takes about ten times its size for a moment.
constexpr size_t kMaxFileBytes = size_t{256} << 20;
constexpr size_t kMaxDepth = 64;

// Depth of brackets outside strings, without building anything: the library's reader recurses.
Status CheckDepth(std::string_view json) {
  size_t depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    if ((c == '{' || c == '[') && ++depth > kMaxDepth) {
      return ResourceExhausted("JSON nested deeper than " + std::to_string(kMaxDepth) + " levels");
    }
    if ((c == '}' || c == ']') && depth > 0) --depth;
  }
  return Status::Ok();
}

Tokenizer::FileDigest DigestOf(std::string_view json) {
  const XXH128_hash_t hash = XXH3_128bits(json.data(), json.size());
  return {hash.low64, hash.high64};
}

std::vector<int32_t> ToIds(std::string_view bytes) {
  std::vector<int32_t> ids(bytes.size() / sizeof(int32_t));
  if (!ids.empty()) std::memcpy(ids.data(), bytes.data(), ids.size() * sizeof(int32_t));
  return ids;
}

}  // namespace

Result<std::shared_ptr<const Tokenizer>> Tokenizer::Load(const std::string& path,
                                                         std::shared_ptr<const Tokenizer> known) {
  return LoadOrFind(
      path, [&](const FileDigest& digest) { return known != nullptr && known->digest_ == digest ? known : nullptr; });
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::LoadOrFind(const std::string& path, const Find& find) {
  DF_ASSIGN_OR_RETURN(const std::string json, ReadFileBounded(path, kMaxFileBytes));
  if (find) {
    if (auto known = find(DigestOf(json)); known != nullptr) return known;
  }
  Result<std::shared_ptr<const Tokenizer>> parsed = Parse(json);
  if (!parsed.ok()) return parsed.status().Annotate(path);
  return parsed;
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::Parse(std::string_view json) {
  if (json.size() > kMaxFileBytes) {
    return ResourceExhausted("tokenizer of " + std::to_string(json.size()) + " bytes, at most " +
                             std::to_string(kMaxFileBytes) + " are accepted");
  }
  DF_RETURN_IF_ERROR(CheckDepth(json));
  dft_tokenizer* handle = nullptr;
  RustBuffer error;
  const dft_code code = dft_tokenizer_new(RustBytes(json), json.size(), &handle, error.out());
  DF_RETURN_IF_ERROR(RustStatus(code, error));
  const std::shared_ptr<Tokenizer> tokenizer(new Tokenizer(handle));
  tokenizer->digest_ = DigestOf(json);
  DF_RETURN_IF_ERROR(tokenizer->ReadTables());
  return std::shared_ptr<const Tokenizer>(tokenizer);
}

Tokenizer::~Tokenizer() { dft_tokenizer_free(handle_); }

Status Tokenizer::ReadTables() {
  RustBuffer out;
  RustBuffer error;
  DF_RETURN_IF_ERROR(RustStatus(dft_tokenizer_describe(handle_, out.out(), error.out()), error));
  DF_ASSIGN_OR_RETURN(const Json tables, ParseJson(out.text(), {.max_bytes = kMaxFileBytes}));
  vocab_ = tables["vocab"].get<int32_t>();
  memory_bytes_ = tables["memory_bytes"].get<size_t>();
  max_bytes_per_token_ = tables["max_bytes_per_token"].get<size_t>();
  prefix_ids_ = tables["prefix"].get<std::vector<int32_t>>();
  suffix_ids_ = tables["suffix"].get<std::vector<int32_t>>();
  for (const Json& token : tables["added"]) {
    added_tokens_.push_back({.id = token["id"].get<int32_t>(),
                             .text = token["text"].get<std::string>(),
                             .special = token["special"].get<bool>()});
  }
  return Status::Ok();
}

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view text, EncodeOptions options) const {
  return EncodeMarked(text, nullptr, 0, options);
}

Result<std::vector<int32_t>> Tokenizer::EncodeBroken(std::string_view text, std::span<const size_t> broken_at,
                                                     EncodeOptions options) const {
  static constexpr size_t kNoMarks[1] = {};  // an empty span may be null, which would say that all is trusted
  return EncodeMarked(text, broken_at.empty() ? kNoMarks : broken_at.data(), broken_at.size(), options);
}

Result<std::vector<int32_t>> Tokenizer::EncodeMarked(std::string_view text, const size_t* broken_at, size_t n_broken,
                                                     const EncodeOptions& options) const {
  if (text.size() > options.max_text_bytes) {
    return ResourceExhausted("text of " + std::to_string(text.size()) + " bytes, at most " +
                             std::to_string(options.max_text_bytes) + " are tokenized");
  }
  const dft_encode_options rust_options = {.add_special_tokens = options.add_special_tokens,
                                           .parse_special_tokens = options.parse_special_tokens,
                                           .max_ms = options.max_ms,
                                           .broken_at = broken_at,
                                           .n_broken = n_broken};
  RustBuffer out;
  RustBuffer error;
  const dft_code code =
      dft_tokenizer_encode(handle_, RustBytes(text), text.size(), &rust_options, out.out(), error.out());
  DF_RETURN_IF_ERROR(RustStatus(code, error));
  return ToIds(out.text());
}

Result<std::string> Tokenizer::Decode(std::span<const int32_t> ids, DecodeOptions options) const {
  RustBuffer out;
  RustBuffer error;
  const dft_code code =
      dft_tokenizer_decode(handle_, ids.data(), ids.size(), options.skip_special_tokens, out.out(), error.out());
  DF_RETURN_IF_ERROR(RustStatus(code, error));
  return std::string(out.text());
}

std::optional<int32_t> Tokenizer::IdOrNull(std::string_view token) const {
  const int32_t id = dft_tokenizer_id(handle_, RustBytes(token), token.size());
  if (id < 0) return std::nullopt;
  return id;
}

Result<std::string> Tokenizer::TokenText(int32_t id) const {
  RustBuffer out;
  RustBuffer error;
  DF_RETURN_IF_ERROR(RustStatus(dft_tokenizer_token(handle_, id, out.out(), error.out()), error));
  return std::string(out.text());
}

Result<std::string> Tokenizer::TokenBytes(int32_t id) const {
  RustBuffer out;
  RustBuffer error;
  DF_RETURN_IF_ERROR(RustStatus(dft_tokenizer_token_bytes(handle_, id, out.out(), error.out()), error));
  return std::string(out.text());
}

bool Tokenizer::IsSpecial(int32_t id) const {
  const auto at = std::lower_bound(added_tokens_.begin(), added_tokens_.end(), id,
                                   [](const AddedToken& token, int32_t value) { return token.id < value; });
  return at != added_tokens_.end() && at->id == id && at->special;
}

size_t Tokenizer::MaxTextBytes(int64_t n_tokens) const {
  if (max_bytes_per_token_ == 0) return SIZE_MAX;
  if (n_tokens <= 0) return 0;
  const auto n = static_cast<size_t>(n_tokens);
  return n > SIZE_MAX / max_bytes_per_token_ ? SIZE_MAX : n * max_bytes_per_token_;
}

}  // namespace df
