#include "server/openapi.h"

#include <gtest/gtest.h>

#include <set>

#include "base/json.h"
#include "server/openai_types.h"
#include "server/router.h"

namespace df::server {
namespace {

const Json& Schemas() {
  static const Json schemas = *ParseJson(kOpenApiSchemas);
  return schemas;
}

// Every "$ref" below `json`.
void CollectReferences(const Json& json, std::set<std::string>& names) {
  if (json.is_object() && json.contains("$ref")) names.insert(json["$ref"].get<std::string>());
  if (!json.is_structured()) return;
  for (const Json& inner : json) CollectReferences(inner, names);
}

TEST(OpenApi, HasEveryRouteOfTheRouterWithItsMethods) {
  const Json api = OpenApi("1.2.3");
  size_t n_paths = 0;
  for (const RouteEntry& entry : Routes()) {
    const std::string path(entry.path);
    ASSERT_TRUE(api["paths"].contains(path)) << path;
    ++n_paths;
    for (const auto& [method, key] : {std::pair{"GET", "get"}, std::pair{"POST", "post"}}) {
      EXPECT_EQ(api["paths"][path].contains(key), Allows(entry.allow, method)) << path;
      if (!Allows(entry.allow, method)) continue;
      const Json& operation = api["paths"][path][key];
      EXPECT_NE(operation["summary"], "") << path;
      EXPECT_EQ(operation["security"].empty(), entry.access == Access::kAnybody) << path;
      EXPECT_EQ(operation.contains("parameters"), path.find('{') != std::string::npos) << path;
    }
  }
  EXPECT_EQ(api["paths"].size(), n_paths) << "and no other";
  EXPECT_EQ(api["info"]["version"], "1.2.3");
}

TEST(OpenApi, DescribesEverySchemaThatItRefersTo) {
  std::set<std::string> names;
  CollectReferences(OpenApi("1"), names);
  constexpr std::string_view kPrefix = "#/components/schemas/";
  for (const std::string& name : names) {
    ASSERT_TRUE(name.starts_with(kPrefix)) << name;
    EXPECT_TRUE(Schemas().contains(name.substr(kPrefix.size()))) << name;
  }
  EXPECT_GE(names.size(), Schemas().size() - 1) << "all but AnyObject are used";
}

// A value of a wrong type in each described field is refused by the reader, naming it: it knows them all.
TEST(OpenApi, DescribesRequestsAsTheReadersTakeThem) {
  const auto expect_known = [](const Json& properties, Json sound, const auto& read) {
    ASSERT_FALSE(read(sound).has_value());
    for (const auto& [field, schema] : properties.items()) {
      Json body = sound;
      body["stream"] = true;  // stream_options want it
      body[field] = schema.value("type", "") == "object" ? Json(1) : Json::object({{"no", "such"}});
      const std::optional<ApiError> error = read(body);
      ASSERT_TRUE(error.has_value()) << field;
      EXPECT_EQ(error->param.substr(0, field.size()), field) << error->message;
    }
  };
  const auto read_chat = [](const Json& body) {
    ChatRequest request;
    return ReadChatRequest(body, request);
  };
  const auto read_completion = [](const Json& body) {
    CompletionRequest request;
    return ReadCompletionRequest(body, request);
  };
  const Json chat = *ParseJson(R"({"model":"a","messages":[{"role":"user","content":"b"}]})");
  const Json completion = *ParseJson(R"({"model":"a","prompt":"b"})");
  expect_known(Schemas()["Generation"]["properties"], chat, read_chat);
  expect_known(Schemas()["ChatRequest"]["allOf"][1]["properties"], chat, read_chat);
  expect_known(Schemas()["Generation"]["properties"], completion, read_completion);
  expect_known(Schemas()["CompletionRequest"]["allOf"][1]["properties"], completion, read_completion);
}

}  // namespace
}  // namespace df::server
