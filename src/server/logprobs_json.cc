#include "server/logprobs_json.h"

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/utf8.h"

namespace df::server {
namespace {

constexpr float kLowest = -9999.0F;

void AppendSeparator(std::string& json) {
  if (!json.empty() && json.back() != '[' && json.back() != '{') json += ',';
}

template <typename Number>
void AppendNumber(Number value, std::string& json) {
  char digits[32];
  const auto [end, error] = std::to_chars(digits, digits + sizeof(digits), value);  // the shortest that reads back
  json.append(digits, end);
}

void AppendLogprob(const std::optional<float>& logprob, std::string& json) {
  if (logprob) {
    AppendNumber(std::max(*logprob, kLowest), json);
  } else {
    json += "null";
  }
}

std::string NameOf(const std::string& bytes) {
  if (IsValidUtf8(bytes)) return bytes;
  constexpr char kHex[] = "0123456789abcdef";
  std::string name = "bytes:";
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    name += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
  }
  return name;
}

std::string QuotedName(const TokenLikelihood& token) { return DumpJson(Json(NameOf(token.bytes))); }

size_t CountCharacters(const std::string& bytes) {
  const auto begins = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  return static_cast<size_t>(std::count_if(bytes.begin(), bytes.end(), begins));
}

// {"name": logprob, ...}, no name twice.
void AppendTopObject(const LikelyTokens& tokens, std::string& json) {
  if (!tokens.token.logprob) {
    json += "null";
    return;
  }
  std::vector<std::string> names;
  const auto append = [&](const TokenLikelihood& token) {
    std::string name = QuotedName(token);
    if (std::find(names.begin(), names.end(), name) != names.end()) return;
    AppendSeparator(json);
    json += name;
    json += ':';
    AppendLogprob(token.logprob, json);
    names.push_back(std::move(name));
  };
  json += '{';
  for (const TokenLikelihood& token : tokens.top) append(token);
  append(tokens.token);
  json += '}';
}

// Without the closing brace.
void AppendChatToken(const TokenLikelihood& token, std::string& json) {
  AppendSeparator(json);
  json += "{\"token\":";
  json += QuotedName(token);
  json += ",\"logprob\":";
  AppendLogprob(token.logprob, json);
  json += ",\"bytes\":[";
  for (const char c : token.bytes) {
    AppendSeparator(json);
    AppendNumber(static_cast<int>(static_cast<unsigned char>(c)), json);
  }
  json += ']';
}

}  // namespace

void LogprobsJson::Add(const LikelyTokens& tokens) {
  style_ == LogprobStyle::kChat ? AddToChat(tokens) : AddToCompletion(tokens);
}

void LogprobsJson::AddToCompletion(const LikelyTokens& tokens) {
  for (std::string* list : {&entries_, &token_logprobs_, &top_logprobs_, &text_offsets_}) AppendSeparator(*list);
  entries_ += QuotedName(tokens.token);
  AppendLogprob(tokens.token.logprob, token_logprobs_);
  AppendTopObject(tokens, top_logprobs_);
  AppendNumber(n_characters_, text_offsets_);
  n_characters_ += CountCharacters(tokens.token.bytes);
}

void LogprobsJson::AddToChat(const LikelyTokens& tokens) {
  AppendChatToken(tokens.token, entries_);
  entries_ += ",\"top_logprobs\":[";
  for (const TokenLikelihood& token : tokens.top) {
    AppendChatToken(token, entries_);
    entries_ += '}';
  }
  entries_ += "]}";
}

std::string LogprobsJson::Take() {
  if (empty()) return "";
  const std::string entries = std::exchange(entries_, {});
  if (style_ == LogprobStyle::kChat) return "{\"content\":[" + entries + "],\"refusal\":null}";
  return "{\"tokens\":[" + entries + "],\"token_logprobs\":[" + std::exchange(token_logprobs_, {}) +
         "],\"top_logprobs\":[" + std::exchange(top_logprobs_, {}) + "],\"text_offset\":[" +
         std::exchange(text_offsets_, {}) + "]}";
}

}  // namespace df::server
