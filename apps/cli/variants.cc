// `deltafold variants`: what a running server serves, and changes to it.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <thread>

#include "base/json.h"
#include "cli/command.h"
#include "cli/table.h"
#include "cli/variants_view.h"
#include "tools/http_client.h"

namespace df::cli {
namespace {

// Opening and checking a large delta may take the server this long.
constexpr double kLoadSeconds = 600;

struct Arguments {
  std::string server = "http://127.0.0.1:8000";
  std::string api_key;
  std::string name, path, parent, generation;
  bool pinned = false, replace = false, json = false, watch = false;
  uint64_t interval_s = 1;
};

constexpr char kListExamples[] =
    "Examples:\n"
    "  deltafold variants list\n"
    "  deltafold variants list --watch --server http://10.0.0.7:8000\n"
    "  deltafold variants list --json | jq '.data[] | select(.state == \"failed\")'";
constexpr char kLoadExamples[] =
    "Examples:\n"
    "  deltafold variants load sql ./variants/sql\n"
    "  deltafold variants load sql sql-v2 --replace --pinned\n"
    "  deltafold variants load tone adapters/tone --parent sql\n"
    "The path is the server's, absolute or from its --variant-root, and lies under that; or a hub id in a cache there.";
constexpr char kExamples[] =
    "Examples:\n"
    "  deltafold variants list --watch\n"
    "  deltafold variants load sql ./variants/sql && deltafold variants pin sql\n"
    "  DELTAFOLD_ADMIN_API_KEY=secret deltafold variants unload sql --server http://10.0.0.7:8000\n"
    "The server is one of `deltafold serve`; loading and unloading want its --variant-root.";

Result<tools::Endpoint> EndpointOf(const Arguments& arguments) {
  DF_ASSIGN_OR_RETURN(tools::Endpoint endpoint, tools::ParseEndpoint(arguments.server));
  endpoint.api_key = arguments.api_key;
  for (const char* variable : {"DELTAFOLD_ADMIN_API_KEY", "DELTAFOLD_API_KEY"}) {
    const char* value = std::getenv(variable);
    if (endpoint.api_key.empty() && value != nullptr) endpoint.api_key = value;
  }
  return endpoint;
}

// The body of the answer, or what the server says is wrong.
Result<std::string> Ask(const Arguments& arguments, const tools::HttpQuestion& question) {
  DF_ASSIGN_OR_RETURN(const tools::Endpoint endpoint, EndpointOf(arguments));
  Result<tools::HttpAnswer> answer = tools::AskServer(endpoint, question);
  if (!answer.ok()) {
    return answer.status().Annotate("no answer from the server (is `deltafold serve` running there?)");
  }
  if (answer->status == 200) return std::move(answer->body);
  const Result<Json> body = ParseJson(answer->body);
  const Json* error = body.ok() && body->is_object() ? JsonMemberOrNull(*body, "error") : nullptr;
  const Result<std::string> message =
      error != nullptr && error->is_object() ? JsonString(*error, "message") : Result<std::string>(answer->body);
  return Unavailable("the server answers " + std::to_string(answer->status) + ": " +
                     Printable(message.ok() ? *message : answer->body.substr(0, 300)));
}

Status PrintList(const Arguments& arguments, bool in_place) {
  DF_ASSIGN_OR_RETURN(const std::string body, Ask(arguments, {.path = "/v1/variants"}));
  if (arguments.json) {
    std::cout << body << std::endl;
    return Status::Ok();
  }
  DF_ASSIGN_OR_RETURN(const Json list, ParseJson(body));
  DF_ASSIGN_OR_RETURN(std::string text, VariantsTable(list, std::time(nullptr)));
  std::cout << (in_place ? InPlace(text) : text) << std::flush;
  return Status::Ok();
}

Status List(const Arguments& arguments) {
  if (!arguments.watch) return PrintList(arguments, false);
  const bool in_place = isatty(STDOUT_FILENO) != 0 && !arguments.json;
  while (true) {  // until Ctrl-C, or until the server does not answer any more
    DF_RETURN_IF_ERROR(PrintList(arguments, in_place));
    std::this_thread::sleep_for(std::chrono::seconds(arguments.interval_s));
  }
}

Status Change(const Arguments& arguments, const std::string& path, const Json& body) {
  DF_ASSIGN_OR_RETURN(const std::string answer,
                      Ask(arguments, {.post = true, .path = path, .body = DumpJson(body), .timeout_s = kLoadSeconds}));
  if (arguments.json) {
    const bool is_json = answer.starts_with('{');
    std::cout << (is_json ? answer : DumpJson(Json::object({{"id", arguments.name}, {"message", answer}}))) << "\n";
    return Status::Ok();
  }
  const Result<Json> row = ParseJson(answer);
  if (!row.ok()) {  // vLLM's sentence
    std::cout << Printable(answer) << "\n";
    return Status::Ok();
  }
  DF_ASSIGN_OR_RETURN(const std::string line, VariantLine(*row));
  std::cout << line << "\n";
  return Status::Ok();
}

void SetUnlessEmpty(const char* key, const std::string& value, Json& body) {
  if (!value.empty()) body[key] = value;
}

Status Load(const Arguments& arguments) {
  Json body = {{"lora_name", arguments.name}, {"lora_path", arguments.path}};
  SetUnlessEmpty("parent", arguments.parent, body);
  SetUnlessEmpty("expected_generation", arguments.generation, body);
  if (arguments.pinned) body["pinned"] = true;
  if (arguments.replace || !arguments.generation.empty()) body["load_inplace"] = true;
  return Change(arguments, "/v1/load_lora_adapter", body);
}

Status Unload(const Arguments& arguments) {
  Json body = {{"lora_name", arguments.name}};
  SetUnlessEmpty("expected_generation", arguments.generation, body);
  return Change(arguments, "/v1/unload_lora_adapter", body);
}

Status Act(const Arguments& arguments, const std::string& action) {
  Json body = Json::object();
  SetUnlessEmpty("expected_generation", arguments.generation, body);
  return Change(arguments, "/v1/variants/" + tools::PercentEncoded(arguments.name) + "/" + action, body);
}

using Run = std::function<Status(const Arguments&)>;

// A sub-command with what all of them take.
Command AddOne(const Command& variants, const std::string& name, const std::string& help,
               const std::shared_ptr<Arguments>& arguments, const Run& run) {
  const Command command = variants.Sub(name, help);
  command.Option("--server", arguments->server, "Of the running server").ShowDefault();
  command
      .Option("--api-key", arguments->api_key,
              "Its admin key, or API key where it has no other [DELTAFOLD_ADMIN_API_KEY, DELTAFOLD_API_KEY]")
      .Value("KEY");
  command.Switch("--json", arguments->json, "Print JSON");
  command.OnRun([name, arguments, run] { return Report("variants " + name, run(*arguments)); });
  return command;
}

// One that is about a variant.
Command AddNamed(const Command& variants, const std::string& name, const std::string& help, const Run& run) {
  const auto arguments = std::make_shared<Arguments>();
  const Command command = AddOne(variants, name, help, arguments, run);
  command.Option("name", arguments->name, "Of the variant").Required().Value("NAME");
  command
      .Option("--expected-generation", arguments->generation,
              "Change nothing unless the name stands for this generation (see list --json)")
      .Value("DIGEST");
  command.Footer("Examples:\n  deltafold variants " + name + " sql\n  deltafold variants " + name +
                 " org/sql --server http://10.0.0.7:8000 --json");
  return command;
}

void AddList(const Command& variants) {
  const auto arguments = std::make_shared<Arguments>();
  const Command list = AddOne(variants, "list", "What the server serves, and what of it is in memory", arguments, List);
  list.Switch("--watch", arguments->watch, "Again and again; in place on a terminal");
  list.Option("--interval", arguments->interval_s, "Seconds between two looks").Range(1, 3600).ShowDefault();
  list.Footer(kListExamples);
}

void AddLoad(const Command& variants) {
  const auto arguments = std::make_shared<Arguments>();
  const Command load = AddOne(variants, "load", "Serve a delta or an adapter under a name", arguments, Load);
  load.Option("name", arguments->name, "To serve it under").Required().Value("NAME");
  load.Option("path", arguments->path, "Directory on the server").Required().Value("PATH");
  load.Switch("--pinned", arguments->pinned, "Load it now and keep it in memory");
  load.Switch("--replace", arguments->replace,
              "Put it in the place of what has the name; requests under way end on that");
  load.Option("--parent", arguments->parent, "1-bit variant that an adapter sits on [the base]").Value("NAME");
  load.Option("--expected-generation", arguments->generation,
              "Replace this generation, or nothing (see list --json); implies --replace")
      .Value("DIGEST");
  load.Footer(kLoadExamples);
}

}  // namespace

void AddVariants(const Command& app) {
  const Command variants = app.Sub("variants", "What a running server serves: list, load, unload, pin, evict");
  variants.RequireSub();
  AddList(variants);
  AddLoad(variants);
  AddNamed(variants, "unload", "Serve a name no more; requests under way end", Unload);
  for (const auto& [word, help] : {std::pair{"pin", "Keep a variant in memory, whatever else is asked for"},
                                   std::pair{"unpin", "Let it go when room is wanted"},
                                   std::pair{"prefetch", "Load it before it is asked for; does not wait"},
                                   std::pair{"evict", "Give its memory back now; it stays registered"}}) {
    AddNamed(variants, word, help,
             [action = std::string(word)](const Arguments& arguments) { return Act(arguments, action); });
  }
  variants.Footer(kExamples);
}

}  // namespace df::cli
