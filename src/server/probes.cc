// GET /health, /ready, /ping, /version, /metrics
#include "server/router.h"

namespace df::server {
namespace {

HttpResponse State(int status, const char* word) {
  HttpResponse response{.status = status, .headers = {}, .body = DumpJson(Json::object({{"status", word}}))};
  if (status == 503) response.headers.emplace_back("Retry-After", "1");
  return response;
}

}  // namespace

HttpResponse AnswerProbe(const RouteContext& context, Route route) {
  if (route == Route::kVersion) {
    return {.headers = {}, .body = DumpJson(Json::object({{"version", context.version}}))};
  }
  if (!context.service.Healthy()) return State(503, "stalled");
  if (route == Route::kReady && context.draining) return State(503, "draining");
  if (route == Route::kReady && !context.service.store().Ready()) return State(503, "loading");
  return State(200, route == Route::kReady ? "ready" : "ok");
}

HttpResponse AnswerMetrics(const RouteContext& context) {
  return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
          .headers = {},
          .body = context.metrics.Render(context.service.Snapshot())};
}

}  // namespace df::server
