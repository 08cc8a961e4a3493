#include "server/router.h"

namespace df::server {
namespace {

constexpr std::string_view kGet = "GET, HEAD";
constexpr std::string_view kPost = "POST";

constexpr RouteEntry kRoutes[] = {
    {"/v1/chat/completions", Route::kChat, kPost, Access::kKey},
    {"/v1/completions", Route::kCompletions, kPost, Access::kKey},
    {"/v1/models", Route::kModels, kGet, Access::kKey},
    {"/v1/models/{id}", Route::kModel, kGet, Access::kKey},
    {"/v1/variants", Route::kVariants, kGet, Access::kKey},
    {"/v1/variants/{name}/pin", Route::kPin, kPost, Access::kAdmin},
    {"/v1/variants/{name}/unpin", Route::kUnpin, kPost, Access::kAdmin},
    {"/v1/variants/{name}/prefetch", Route::kPrefetch, kPost, Access::kAdmin},
    {"/v1/variants/{name}/evict", Route::kEvict, kPost, Access::kAdmin},
    {"/v1/load_lora_adapter", Route::kLoadAdapter, kPost, Access::kAdmin},
    {"/v1/unload_lora_adapter", Route::kUnloadAdapter, kPost, Access::kAdmin},
    {"/load_lora_adapter", Route::kLoadAdapter, kPost, Access::kAdmin},  // SGLang's paths
    {"/unload_lora_adapter", Route::kUnloadAdapter, kPost, Access::kAdmin},
    {"/health", Route::kHealth, kGet, Access::kAnybody, true},
    {"/ready", Route::kReady, kGet, Access::kAnybody, true},
    {"/ping", Route::kPing, "GET, HEAD, POST", Access::kAnybody, true},
    {"/version", Route::kVersion, kGet, Access::kAnybody, true},
    {"/metrics", Route::kMetrics, kGet, Access::kAnybody, true},
    {"/openapi.json", Route::kOpenApi, kGet, Access::kAnybody},
};

// Whether `path` is one of `entry`'s; `target` becomes the name in it, if any.
bool Fits(const RouteEntry& entry, std::string_view path, std::string_view& target) {
  const size_t begin = entry.path.find('{');
  if (begin == std::string_view::npos) return path == entry.path;
  const std::string_view prefix = entry.path.substr(0, begin), suffix = entry.path.substr(entry.path.find('}') + 1);
  if (path.size() <= prefix.size() + suffix.size()) return false;  // a name has a character at least
  if (!path.starts_with(prefix) || !path.ends_with(suffix)) return false;
  target = path.substr(prefix.size(), path.size() - prefix.size() - suffix.size());
  return true;
}

}  // namespace

std::span<const RouteEntry> Routes() { return kRoutes; }

bool Allows(std::string_view allow, std::string_view method) {
  while (!allow.empty()) {
    const size_t comma = allow.find(", ");
    if (allow.substr(0, comma) == method) return true;
    if (comma == std::string_view::npos) break;
    allow.remove_prefix(comma + 2);
  }
  return false;
}

RouteMatch MatchRoute(std::string_view method, std::string_view path) {
  RouteMatch match;
  if (path.starts_with("/v1/") || path == "/v1") match.access = Access::kKey;
  for (const RouteEntry& entry : kRoutes) {
    if (!Fits(entry, path, match.target)) continue;
    match.known_path = true;
    match.route = entry.route;
    match.allow = entry.allow;
    match.access = entry.access;
    match.is_probe = entry.is_probe;
    break;
  }
  match.method_allowed = Allows(match.allow, method);
  return match;
}

HttpResponse Answer(const RouteContext& context, const RouteMatch& match) {
  switch (match.route) {
    case Route::kModels: return AnswerModels(context);
    case Route::kModel: return AnswerModel(context, match.target);
    case Route::kVariants: return AnswerVariants(context);
    case Route::kMetrics: return AnswerMetrics(context);
    case Route::kOpenApi: return AnswerOpenApi(context);
    default: return AnswerProbe(context, match.route);
  }
}

}  // namespace df::server
