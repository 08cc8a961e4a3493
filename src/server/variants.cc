// GET /v1/variants, POST /v1/variants/{name}/pin, unpin, prefetch, evict
#include "base/json.h"
#include "server/admin.h"
#include "server/request_fields.h"

namespace df::server {
namespace {

constexpr size_t kMaxGenerationBytes = 256;

Json FailureOf(const VariantStatus& status) {
  const bool has_failed = status.state == ResidencyState::kFailed;
  if (!has_failed && (status.state != ResidencyState::kRegistered || status.failure.ok())) return nullptr;
  Json failure = Json::object();
  failure["message"] = WithoutPaths(status.failure.message(), status.variant->directory);
  failure["retry_in_seconds"] = has_failed ? Json(static_cast<double>(status.retry_in_ms) * 1e-3) : Json(nullptr);
  return failure;
}

Status Act(VariantStore& store, Route route, const std::string& name, const std::string& generation) {
  switch (route) {
    case Route::kPin: return store.Pin(name, generation);
    case Route::kUnpin: return store.Unpin(name, generation);
    case Route::kPrefetch: return store.Prefetch(name, generation);
    default: return store.Evict(name, generation);
  }
}

ApiError Conflict(const Status& status, std::string code) {
  return {.status = 409,
          .type = "conflict_error",
          .message = WithoutPaths(status.message()),
          .param = "",
          .code = std::move(code)};
}

ApiError ActionFailure(const Status& status, const std::string& name) {
  if (IsGenerationMismatch(status)) return Conflict(status, "generation_mismatch");
  if (status.code() == StatusCode::kNotFound) return ModelNotFound(name);
  // No room beside what is pinned is no overload that passes by itself: clients retry a 429.
  const bool in_use =
      status.code() == StatusCode::kFailedPrecondition || status.code() == StatusCode::kResourceExhausted;
  if (in_use) return Conflict(status, "in_use");
  ApiError error = FromStatus(status);
  error.message = WithoutPaths(std::move(error.message));
  return error;
}

FieldError ReadExpectedGeneration(const std::string& body, std::string& generation) {
  if (body.empty()) return std::nullopt;
  Json root;
  DF_RETURN_IF_FIELD_ERROR(ParseBody(body, root));
  return ReadString(root, "expected_generation", kMaxGenerationBytes, generation);
}

}  // namespace

Json VariantRow(const VariantStatus& status, const std::string& base_name) {
  const Variant& variant = *status.variant;
  const GenerationInfo& info = variant.generation->info();
  Json row = Json::object();
  row["id"] = variant.name;
  row["object"] = "variant";
  row["generation"] = info.digest;
  row["kind"] = variant.KindName();
  row["parent"] = variant.parent.empty() ? base_name : variant.parent;
  row["root"] = variant.root;
  row["state"] = ResidencyStateName(status.state);
  row["failure"] = FailureOf(status);
  row["pinned"] = status.pinned;
  row["auto_pinned"] = status.auto_pinned;
  row["tiers"] = status.state == ResidencyState::kResident ? Json::array({"disk", "host"}) : Json::array({"disk"});
  row["bytes"] = status.bytes;
  row["resident_bytes"] = info.resident_bytes;
  row["stored_bytes"] = info.stored_bytes;
  row["in_flight"] = status.n_leases;
  row["requests_per_second"] = status.requests_per_s;
  row["last_used"] = status.last_used_unix == 0 ? Json(nullptr) : Json(status.last_used_unix);
  row["load_seconds"] = status.load_seconds;
  if (status.pool) {
    row["pool"] = {{"slot", status.pool->slot},
                   {"members", status.pool->members},
                   {"error_at_most", status.pool->error_at_most},
                   {"error_estimate", status.pool->error_estimate}};
  }
  return row;
}

HttpResponse AnswerVariants(const RouteContext& context) {
  const VariantStore& store = context.service.store();
  const StoreStats stats = store.Stats();
  Json body = Json::object();
  body["object"] = "list";
  body["base"] = store.base_name();
  body["budget_bytes"] = stats.budget_bytes == UINT64_MAX ? Json(nullptr) : Json(stats.budget_bytes);
  body["reserved_bytes"] = stats.reserved_bytes;
  body["resident_bytes"] = stats.resident_bytes;
  body["waiting"] = stats.waiting_names;
  Json& rows = body["data"] = Json::array();
  for (const VariantStatus& status : store.Statuses()) rows.push_back(VariantRow(status, store.base_name()));
  return {.headers = {}, .body = DumpJson(body)};
}

AdminAnswer ActOnVariant(const AdminContext& context, const AdminRequest& request) {
  std::string name, generation;
  if (!PercentDecode(request.target, name))
    return {.response = ErrorResponse(RouteNotFound()), .subject = "", .cause = ""};
  AdminAnswer answer{.response = {}, .subject = Shortened(name), .cause = ""};
  if (const auto error = ReadExpectedGeneration(request.body, generation)) {
    answer.response = ErrorResponse(*error);
    return answer;
  }
  const Status status = Act(context.store, request.route, name, generation);
  if (!status.ok()) {
    answer.response = ErrorResponse(ActionFailure(status, name));
    answer.cause = status.message();
    return answer;
  }
  for (const VariantStatus& row : context.store.Statuses()) {
    if (row.variant->name == name) answer.response.body = DumpJson(VariantRow(row, context.store.base_name()));
  }
  if (answer.response.body.empty()) answer.response = ErrorResponse(ModelNotFound(name));  // retired meanwhile
  return answer;
}

}  // namespace df::server
