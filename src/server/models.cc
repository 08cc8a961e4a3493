// GET /v1/models, /v1/models/{id}
#include "base/json.h"
#include "server/error_map.h"
#include "server/router.h"

namespace df::server {
namespace {

// vLLM's card and ours: kind, digest, state. `status` is that of the variant's name; null for the base, which is always
// there.
Json Card(const TextService& service, const Variant& variant, const VariantStatus* status) {
  const std::string& base_name = service.store().base_name();
  Json card = Json::object();
  card["id"] = variant.name;
  card["object"] = "model";
  card["created"] = variant.created_unix;
  card["owned_by"] = "deltafold";
  card["root"] = variant.root;
  card["parent"] = variant.IsBase() ? Json(nullptr) : Json(variant.parent.empty() ? base_name : variant.parent);
  card["max_model_len"] = service.ContextLength(variant);
  card["kind"] = variant.KindName();
  card["generation"] = variant.IsBase() ? Json(nullptr) : Json(variant.generation->info().digest);
  card["state"] = status == nullptr ? "resident" : ResidencyStateName(status->state);
  card["pinned"] = status == nullptr || status->pinned;
  return card;
}

}  // namespace

HttpResponse AnswerModels(const RouteContext& context) {
  const VariantStore& store = context.service.store();
  Json body = Json::object();
  body["object"] = "list";
  Json& list = body["data"] = Json::array();
  list.push_back(Card(context.service, *store.FindOrNull(store.base_name()), nullptr));
  for (const VariantStatus& status : store.Statuses()) list.push_back(Card(context.service, *status.variant, &status));
  return {.headers = {}, .body = DumpJson(body)};
}

HttpResponse AnswerModel(const RouteContext& context, std::string_view target) {
  std::string name;
  if (!PercentDecode(target, name)) return ErrorResponse(RouteNotFound());
  const VariantStore& store = context.service.store();
  const std::shared_ptr<const Variant> variant = store.FindOrNull(name);
  if (variant == nullptr) return ErrorResponse(ModelNotFound(name));
  if (variant->IsBase()) return {.headers = {}, .body = DumpJson(Card(context.service, *variant, nullptr))};
  for (const VariantStatus& status : store.Statuses()) {
    if (status.variant->name != variant->name) continue;
    return {.headers = {}, .body = DumpJson(Card(context.service, *status.variant, &status))};
  }
  return ErrorResponse(ModelNotFound(name));  // retired meanwhile
}

}  // namespace df::server
