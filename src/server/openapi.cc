// GET /openapi.json: the routes of the router's table, with the bodies that the readers of this folder take.
#include "server/openapi.h"

#include "base/check.h"
#include "base/json.h"
#include "server/router.h"

namespace df::server {
namespace {

// What a route is for and which schemas its bodies have; "" = no JSON body.
struct Operation {
  std::string_view summary;
  std::string_view request, response;
};

Operation OperationOf(Route route) {
  switch (route) {
    case Route::kChat: return {"A chat answer; streamed with \"stream\": true", "ChatRequest", "ChatAnswer"};
    case Route::kCompletions:
      return {"A continuation of text or token ids; streamed with \"stream\": true", "CompletionRequest",
              "CompletionAnswer"};
    case Route::kModels: return {"Everything served: the base first, then the variants", "", "ModelList"};
    case Route::kModel: return {"One served model", "", "ModelCard"};
    case Route::kVariants: return {"What is registered and what of it is in memory", "", "VariantList"};
    case Route::kLoadAdapter: return {"Gives a delta or an adapter a name", "LoadRequest", ""};
    case Route::kUnloadAdapter: return {"Takes the name away", "UnloadRequest", ""};
    case Route::kPin: return {"Keeps it in memory", "VariantRequest", "Variant"};
    case Route::kUnpin: return {"Lets it leave memory", "VariantRequest", "Variant"};
    case Route::kPrefetch: return {"Starts to load it", "VariantRequest", "Variant"};
    case Route::kEvict: return {"Gives its memory back; the name stays", "VariantRequest", "Variant"};
    case Route::kHealth: return {"Whether the engine makes steps", "", "State"};
    case Route::kReady: return {"Whether new requests are taken", "", "State"};
    case Route::kPing: return {"As /health", "", "State"};
    case Route::kVersion: return {"The program's version", "", "Version"};
    case Route::kMetrics: return {"Metrics as Prometheus reads them", "", ""};
    case Route::kOpenApi: return {"This description", "", "AnyObject"};
  }
  return {};
}

Json Reference(std::string_view schema) {
  return Json::object({{"$ref", "#/components/schemas/" + std::string(schema)}});
}

Json Content(std::string_view schema) {
  Json content = Json::object();
  if (schema.empty()) {
    content["text/plain"]["schema"]["type"] = "string";
  } else {
    content["application/json"]["schema"] = Reference(schema);
  }
  return content;
}

// "{name}" of the path, where there is one.
Json Parameters(std::string_view path) {
  Json parameters = Json::array();
  const size_t begin = path.find('{');
  if (begin == std::string_view::npos) return parameters;
  parameters.push_back(Json::object({{"name", path.substr(begin + 1, path.find('}') - begin - 1)},
                                     {"in", "path"},
                                     {"required", true},
                                     {"schema", Json::object({{"type", "string"}})}}));
  return parameters;
}

Json OperationJson(const RouteEntry& entry) {
  const Operation operation = OperationOf(entry.route);
  DF_CHECK(!operation.summary.empty());
  Json json = Json::object();
  json["summary"] = operation.summary;
  if (Json parameters = Parameters(entry.path); !parameters.empty()) json["parameters"] = std::move(parameters);
  if (!operation.request.empty()) {
    // The body of a change to a variant may be left out.
    json["requestBody"]["required"] = entry.path.find('{') == std::string_view::npos;
    json["requestBody"]["content"] = Content(operation.request);
  }
  json["responses"]["200"]["description"] = operation.summary;
  json["responses"]["200"]["content"] = Content(operation.response);
  if (IsGeneration(entry.route)) {
    json["responses"]["200"]["content"]["text/event-stream"]["schema"]["type"] = "string";
  }
  json["responses"]["default"]["description"] = "What went wrong";
  json["responses"]["default"]["content"] = Content(entry.is_probe ? "State" : "Error");
  json["security"] = Json::array();
  if (entry.access == Access::kKey) json["security"].push_back(Json::object({{"key", Json::array()}}));
  if (entry.access == Access::kAdmin) json["security"].push_back(Json::object({{"adminKey", Json::array()}}));
  return json;
}

Json Bearer(std::string_view description) {
  return Json::object({{"type", "http"}, {"scheme", "bearer"}, {"description", description}});
}

}  // namespace

Json OpenApi(const std::string& version) {
  Json api = Json::object();
  api["openapi"] = "3.1.0";
  api["info"]["title"] = "deltafold";
  api["info"]["version"] = version;
  Json& paths = api["paths"] = Json::object();
  for (const RouteEntry& entry : Routes()) {
    for (const auto& [method, key] : {std::pair{"GET", "get"}, std::pair{"POST", "post"}}) {
      if (Allows(entry.allow, method)) paths[std::string(entry.path)][key] = OperationJson(entry);
    }
  }
  Result<Json> schemas = ParseJson(kOpenApiSchemas);
  DF_CHECK(schemas.ok());
  api["components"]["schemas"] = *std::move(schemas);
  Json& security = api["components"]["securitySchemes"];
  security["key"] = Bearer("A key of --api-key or --admin-api-key; none is wanted where neither is given");
  security["adminKey"] = Bearer("A key of --admin-api-key; where there is none, of --api-key");
  return api;
}

HttpResponse AnswerOpenApi(const RouteContext& context) {
  return {.headers = {}, .body = DumpJson(OpenApi(context.version))};
}

}  // namespace df::server
