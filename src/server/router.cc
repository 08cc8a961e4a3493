#include "server/router.h"

namespace df::server {
namespace {

constexpr std::string_view kGet = "GET, HEAD";
constexpr std::string_view kPost = "POST";
constexpr std::string_view kModelPrefix = "/v1/models/";
constexpr std::string_view kVariantPrefix = "/v1/variants/";

struct Entry {
  std::string_view path;
  Route route;
  std::string_view allow;
  Access access;
  bool is_probe = false;
};

constexpr Entry kRoutes[] = {
    {"/v1/chat/completions", Route::kChat, kPost, Access::kKey},
    {"/v1/completions", Route::kCompletions, kPost, Access::kKey},
    {"/v1/models", Route::kModels, kGet, Access::kKey},
    {"/v1/variants", Route::kVariants, kGet, Access::kKey},
    {"/v1/load_lora_adapter", Route::kLoadAdapter, kPost, Access::kAdmin},
    {"/v1/unload_lora_adapter", Route::kUnloadAdapter, kPost, Access::kAdmin},
    {"/load_lora_adapter", Route::kLoadAdapter, kPost, Access::kAdmin},  // SGLang's paths
    {"/unload_lora_adapter", Route::kUnloadAdapter, kPost, Access::kAdmin},
    {"/health", Route::kHealth, kGet, Access::kAnybody, true},
    {"/ready", Route::kReady, kGet, Access::kAnybody, true},
    {"/ping", Route::kPing, "GET, HEAD, POST", Access::kAnybody, true},
    {"/version", Route::kVersion, kGet, Access::kAnybody, true},
    {"/metrics", Route::kMetrics, kGet, Access::kAnybody, true},
};

// What /v1/variants/{name}/ is followed by.
constexpr struct {
  std::string_view action;
  Route route;
} kVariantActions[] = {
    {"/pin", Route::kPin}, {"/unpin", Route::kUnpin}, {"/prefetch", Route::kPrefetch}, {"/evict", Route::kEvict}};

bool Allows(std::string_view allow, std::string_view method) {
  while (!allow.empty()) {
    const size_t comma = allow.find(", ");
    if (allow.substr(0, comma) == method) return true;
    if (comma == std::string_view::npos) break;
    allow.remove_prefix(comma + 2);
  }
  return false;
}

void Found(Route route, std::string_view allow, Access access, RouteMatch& match) {
  match.known_path = true;
  match.route = route;
  match.allow = allow;
  match.access = access;
}

// Paths that hold a name. It may hold slashes, escaped or not: the last part is the action.
void MatchNamed(std::string_view path, RouteMatch& match) {
  if (path.starts_with(kModelPrefix) && path.size() > kModelPrefix.size()) {
    match.target = path.substr(kModelPrefix.size());
    Found(Route::kModel, kGet, Access::kKey, match);
  }
  if (!path.starts_with(kVariantPrefix)) return;
  const std::string_view rest = path.substr(kVariantPrefix.size());
  for (const auto& [action, route] : kVariantActions) {
    if (!rest.ends_with(action) || rest.size() == action.size()) continue;
    match.target = rest.substr(0, rest.size() - action.size());
    Found(route, kPost, Access::kAdmin, match);
  }
}

}  // namespace

RouteMatch MatchRoute(std::string_view method, std::string_view path) {
  RouteMatch match;
  if (path.starts_with("/v1/") || path == "/v1") match.access = Access::kKey;
  for (const Entry& entry : kRoutes) {
    if (entry.path != path) continue;
    Found(entry.route, entry.allow, entry.access, match);
    match.is_probe = entry.is_probe;
  }
  if (!match.known_path) MatchNamed(path, match);
  match.method_allowed = Allows(match.allow, method);
  return match;
}

HttpResponse Answer(const RouteContext& context, const RouteMatch& match) {
  switch (match.route) {
    case Route::kModels: return AnswerModels(context);
    case Route::kModel: return AnswerModel(context, match.target);
    case Route::kVariants: return AnswerVariants(context);
    case Route::kMetrics: return AnswerMetrics(context);
    default: return AnswerProbe(context, match.route);
  }
}

}  // namespace df::server
