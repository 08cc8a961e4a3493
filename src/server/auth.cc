#include "server/auth.h"

namespace df::server {
namespace {

// Walks the whole of `given` for every key; `volatile` keeps the compiler from leaving early.
bool EqualInConstantTime(std::string_view key, std::string_view given) {
  volatile unsigned char difference = key.size() == given.size() ? 0 : 1;
  for (size_t i = 0; i < given.size(); ++i) {
    const char expected = key.empty() ? '\0' : key[i % key.size()];
    difference = static_cast<unsigned char>(difference | (expected ^ given[i]));
  }
  return difference == 0;
}

bool IsBearer(std::string_view scheme) {
  constexpr std::string_view kBearer = "bearer ";
  if (scheme.size() < kBearer.size()) return false;
  for (size_t i = 0; i < kBearer.size(); ++i) {
    const char c = scheme[i];
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c) != kBearer[i]) return false;
  }
  return true;
}

}  // namespace

bool IsAuthorized(const std::vector<std::string>& keys, std::string_view authorization) {
  if (keys.empty()) return true;
  const bool bearer = IsBearer(authorization);
  const std::string_view given = bearer ? authorization.substr(7) : std::string_view();
  bool equal = false;
  for (const std::string& key : keys) equal = EqualInConstantTime(key, given) || equal;
  return bearer && equal;
}

}  // namespace df::server
