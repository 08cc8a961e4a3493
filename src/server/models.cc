// GET /v1/models, /v1/models/{id}
#include "server/router.h"

namespace df::server {
namespace {

// vLLM's card and ours: kind, digest, bytes.
Json Card(const RouteContext& context, const Variant& variant) {
  Json card = Json::object();
  card["id"] = variant.name;
  card["object"] = "model";
  card["created"] = variant.created_unix;
  card["owned_by"] = "deltafold";
  card["root"] = variant.root;
  card["parent"] = variant.IsBase() ? Json(nullptr) : Json(context.service.base_name());
  card["max_model_len"] = context.service.ContextLength(variant);
  card["kind"] = variant.KindName();
  card["generation"] = variant.IsBase() ? Json(nullptr) : Json(variant.generation->info().digest);
  card["state"] = "resident";
  card["pinned"] = true;  // everything registered stays in memory
  return card;
}

}  // namespace

HttpResponse AnswerModels(const RouteContext& context) {
  Json body = Json::object();
  body["object"] = "list";
  Json& list = body["data"] = Json::array();
  for (const auto& variant : context.service.List()) list.push_back(Card(context, *variant));
  return {.headers = {}, .body = DumpJson(body)};
}

HttpResponse AnswerModel(const RouteContext& context, std::string_view path) {
  std::string name;
  if (!PercentDecode(path, name)) return ErrorResponse(RouteNotFound());
  const std::shared_ptr<const Variant> variant = context.service.FindOrNull(name);
  if (variant == nullptr) return ErrorResponse(ModelNotFound(name));
  return {.headers = {}, .body = DumpJson(Card(context, *variant))};
}

}  // namespace df::server
