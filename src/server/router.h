// Method and path to what answers them.
#ifndef DELTAFOLD_SERVER_ROUTER_H_
#define DELTAFOLD_SERVER_ROUTER_H_

#include <span>
#include <string>
#include <string_view>

#include "metrics/metrics.h"
#include "server/http_message.h"
#include "server/text_service.h"

namespace df::server {

enum class Route {
  kChat,
  kCompletions,
  kModels,
  kModel,
  kVariants,
  kLoadAdapter,  // from here to kEvict: routes that change what is served (admin.h)
  kUnloadAdapter,
  kPin,
  kUnpin,
  kPrefetch,
  kEvict,
  kHealth,
  kReady,
  kPing,
  kVersion,
  kMetrics,
  kOpenApi
};

// Who may call it.
enum class Access {
  kAnybody,
  kKey,    // whoever has a key, of either kind
  kAdmin,  // whoever may change what is served (admin_access.h)
};

// A row of the table that requests are matched by.
struct RouteEntry {
  std::string_view path;  // "{name}" stands for a name, which may hold slashes, escaped or not
  Route route;
  std::string_view allow;  // methods, as in the Allow header
  Access access;
  bool is_probe = false;
};
std::span<const RouteEntry> Routes();
// Whether `method` is one of `allow`.
bool Allows(std::string_view allow, std::string_view method);

struct RouteMatch {
  bool known_path = false;
  Route route = Route::kHealth;
  std::string_view target;  // the name in the path of kModel, kPin ... kEvict, still percent-encoded
  std::string_view allow;   // methods of the path, as in the Allow header
  bool method_allowed = false;
  Access access = Access::kAnybody;  // kKey for all unknown paths under /v1
  bool is_probe = false;             // answered when there is room for nothing else
};
// Paths are matched as they stand, escapes and dots included: what is not in the table does not exist. `path` must
// outlive the match.
RouteMatch MatchRoute(std::string_view method, std::string_view path);

inline bool IsGeneration(Route route) { return route == Route::kChat || route == Route::kCompletions; }
inline bool IsAdmin(Route route) { return route >= Route::kLoadAdapter && route <= Route::kEvict; }

// State of the server that answers depend on.
struct RouteContext {
  TextService& service;
  ServerMetrics& metrics;
  std::string version;
  bool draining = false;
};

// The answers that are there at once, one file a family.
HttpResponse AnswerModels(const RouteContext& context);
HttpResponse AnswerModel(const RouteContext& context, std::string_view target);
HttpResponse AnswerVariants(const RouteContext& context);
HttpResponse AnswerProbe(const RouteContext& context, Route route);
HttpResponse AnswerMetrics(const RouteContext& context);
HttpResponse AnswerOpenApi(const RouteContext& context);

HttpResponse Answer(const RouteContext& context, const RouteMatch& match);

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_ROUTER_H_
