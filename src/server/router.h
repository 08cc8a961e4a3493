// Method and path to what answers them.
#ifndef DELTAFOLD_SERVER_ROUTER_H_
#define DELTAFOLD_SERVER_ROUTER_H_

#include <string>
#include <string_view>
#include <vector>

#include "metrics/metrics.h"
#include "server/generation.h"
#include "server/http_message.h"
#include "server/text_service.h"

namespace df::server {

enum class Route { kChat, kCompletions, kModels, kModel, kHealth, kReady, kPing, kVersion, kMetrics };

struct RouteMatch {
  bool known_path = false;
  Route route = Route::kHealth;
  std::string_view allow;  // methods of the path, as in the Allow header
  bool method_allowed = false;
  bool needs_key = false;  // everything under /v1
  bool is_probe = false;   // answered when there is room for nothing else
};
// Paths are matched as they stand, escapes and dots included: what is not in the table does not exist.
RouteMatch MatchRoute(std::string_view method, std::string_view path);

// State of the server that answers depend on.
struct RouteContext {
  TextService& service;
  ServerMetrics& metrics;
  std::string version;
  bool draining = false;
};

// The answers that need no generation, one file a family. `path` is that of kModel.
HttpResponse AnswerModels(const RouteContext& context);
HttpResponse AnswerModel(const RouteContext& context, std::string_view path);
HttpResponse AnswerProbe(const RouteContext& context, Route route);
HttpResponse AnswerMetrics(const RouteContext& context);

HttpResponse Answer(const RouteContext& context, Route route, std::string_view path);

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_ROUTER_H_
