#include "server/router.h"

namespace df::server {
namespace {

constexpr std::string_view kGet = "GET, HEAD";
constexpr std::string_view kPost = "POST";
constexpr std::string_view kModelPrefix = "/v1/models/";

struct Entry {
  std::string_view path;
  Route route;
  std::string_view allow;
  bool is_probe;
};

constexpr Entry kRoutes[] = {
    {"/v1/chat/completions", Route::kChat, kPost, false},
    {"/v1/completions", Route::kCompletions, kPost, false},
    {"/v1/models", Route::kModels, kGet, false},
    {"/health", Route::kHealth, kGet, true},
    {"/ready", Route::kReady, kGet, true},
    {"/ping", Route::kPing, "GET, HEAD, POST", true},
    {"/version", Route::kVersion, kGet, true},
    {"/metrics", Route::kMetrics, kGet, true},
};

bool Allows(std::string_view allow, std::string_view method) {
  while (!allow.empty()) {
    const size_t comma = allow.find(", ");
    if (allow.substr(0, comma) == method) return true;
    if (comma == std::string_view::npos) break;
    allow.remove_prefix(comma + 2);
  }
  return false;
}

}  // namespace

RouteMatch MatchRoute(std::string_view method, std::string_view path) {
  RouteMatch match;
  match.needs_key = path.starts_with("/v1/") || path == "/v1";
  for (const Entry& entry : kRoutes) {
    if (entry.path != path) continue;
    match.known_path = true;
    match.route = entry.route;
    match.allow = entry.allow;
    match.is_probe = entry.is_probe;
  }
  if (!match.known_path && path.starts_with(kModelPrefix) && path.size() > kModelPrefix.size()) {
    match.known_path = true;
    match.route = Route::kModel;
    match.allow = kGet;
  }
  match.method_allowed = Allows(match.allow, method);
  return match;
}

HttpResponse Answer(const RouteContext& context, Route route, std::string_view path) {
  switch (route) {
    case Route::kModels: return AnswerModels(context);
    case Route::kModel: return AnswerModel(context, path.substr(kModelPrefix.size()));
    case Route::kMetrics: return AnswerMetrics(context);
    default: return AnswerProbe(context, route);
  }
}

}  // namespace df::server
