// The routes that change what is served, over sockets and a scripted store: vLLM's answers to the byte, who may call,
// what is refused.
#include <filesystem>
#include <fstream>

#include "server/server_fixture.h"
#include "testing/temporary_directory.h"

namespace df::server {
namespace {

constexpr char kLoad[] = "/v1/load_lora_adapter";
constexpr char kUnload[] = "/v1/unload_lora_adapter";

class AdminRoutesTest : public ServerTest {
 protected:
  AdminRoutesTest() {
    for (const char* name : {"sound", "other", "corrupt", "wrong-base", "unsupported", "missing-file", "unreadable",
                             "too-large", "at-the-gate"}) {
      std::filesystem::create_directories(directory_.path() + "/" + name);
      std::ofstream(directory_.path() + "/" + name + "/delta_config.json") << "{}";
    }
  }
  void StartWithRoot() {
    Result<VariantRoot> root = VariantRoot::Open(directory_.path());
    ASSERT_TRUE(root.ok());
    options_.variant_root = *root;
    Start();
  }
  std::string AskPost(std::string_view path, std::string_view body, const std::string& headers = "") {
    return Ask("POST " + std::string(path) + " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" + headers +
               "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + std::string(body));
  }
  static std::string LoadBody(std::string_view name, std::string_view path, std::string_view more = "") {
    Json body = Json::object();
    body["lora_name"] = name;
    body["lora_path"] = path;
    std::string text = DumpJson(body);
    text.insert(text.size() - 1, more);
    return text;
  }
  std::string Load(std::string_view name, std::string_view path, std::string_view more = "") {
    return AskPost(kLoad, LoadBody(name, path, more));
  }
  // A load that ends when the store's gate opens; its answer is left to the client.
  static void SendSlowLoad(RawClient& client, std::string_view name) {
    const std::string body = LoadBody(name, "at-the-gate");
    client.Send("POST " + std::string(kLoad) +
                " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  Json ErrorOf(const std::string& response) {
    const Result<Json> body = ParseJson(BodyOf(response));
    return body.ok() && body->contains("error") ? (*body)["error"] : Json::object();
  }
  // Status, type and a part of the message, in both of vLLM's forms; nothing of where files are.
  void ExpectError(const std::string& response, int status, const std::string& type, const std::string& part) {
    ExpectStatus(response, status);
    EXPECT_EQ(response.find(directory_.path()), std::string::npos) << response;
    const Json error = ErrorOf(response);
    EXPECT_EQ(error.value("type", ""), type) << response;
    EXPECT_NE(error.value("message", "").find(part), std::string::npos) << response;
    const Result<Json> body = ParseJson(BodyOf(response));
    ASSERT_TRUE(body.ok());
    EXPECT_EQ(body->value("message", ""), error.value("message", ""));
    EXPECT_EQ(body->value("type", ""), type);
    EXPECT_EQ(body->value("code", 0), status);
  }
  Json Row(const std::string& name) {
    const Result<Json> body = ParseJson(BodyOf(Ask(Get("/v1/variants"))));
    if (!body.ok()) return {};
    for (const Json& row : (*body)["data"]) {
      if (row["id"] == name) return row;
    }
    return {};
  }

  testing::TemporaryDirectory directory_;
};

TEST_F(AdminRoutesTest, LoadsAndUnloadsInVllmsWords) {
  StartWithRoot();
  const std::string loaded = Load("math", "sound");
  ExpectStatus(loaded, 200);
  EXPECT_NE(loaded.find("Content-Type: text/plain"), std::string::npos);
  EXPECT_EQ(BodyOf(loaded), "Success: LoRA adapter 'math' added successfully.");
  ExpectStatus(AskChat("math"), 200);
  EXPECT_EQ(Row("math")["state"], "loading") << "its weights are on their way";
  const std::string unloaded = AskPost(kUnload, R"({"lora_name":"math","lora_int_id":3})");
  ExpectStatus(unloaded, 200);
  EXPECT_EQ(BodyOf(unloaded), "Success: LoRA adapter 'math' removed successfully.");
  ExpectStatus(AskChat("math"), 404);
}

TEST_F(AdminRoutesTest, AnswersWithoutTheVersionInThePathToo) {
  StartWithRoot();
  ExpectStatus(AskPost("/load_lora_adapter", LoadBody("math", "sound")), 200);
  ExpectStatus(AskPost("/unload_lora_adapter", R"({"lora_name":"math"})"), 200);
}

TEST_F(AdminRoutesTest, SaysAlreadyLoadedAndCannotBeFoundAsControllersMatch) {
  StartWithRoot();
  ExpectStatus(Load("math", "sound"), 200);
  ExpectError(Load("math", "sound"), 400, "InvalidUserInput", "has already been loaded");
  ExpectError(Load("base", "sound"), 400, "InvalidUserInput", "already");
  ExpectError(AskPost(kUnload, R"({"lora_name":"nobody"})"), 404, "NotFoundError", "cannot be found");
  ExpectError(Load("new", "absent"), 404, "NotFoundError", "cannot be found");
  ExpectError(Load("new", "missing-file"), 404, "NotFoundError", "cannot be found");
  ExpectStatus(Load("math", "other", R"(,"load_inplace":true)"), 200);
}

TEST_F(AdminRoutesTest, RefusesBadFilesWithStableCodesAndNoPaths) {
  StartWithRoot();
  for (const auto& [path, status, code] :
       {std::tuple{"corrupt", 400, "corrupt_files"}, std::tuple{"wrong-base", 400, "does_not_fit"},
        std::tuple{"unsupported", 400, "unsupported_adapter"}, std::tuple{"too-large", 400, "exceeds_budget"},
        std::tuple{"unreadable", 500, "io_error"}}) {
    const std::string response = Load("new", path);
    ExpectError(response, status, status == 400 ? "BadRequestError" : "InternalServerError", "");
    EXPECT_EQ(ErrorOf(response).value("code", ""), code);
  }
  EXPECT_NE(Load("new", "corrupt").find("delta_config.json: byte 3"), std::string::npos);
  EXPECT_EQ(service_.scripted_store().n_registered, 0);
}

TEST_F(AdminRoutesTest, ReadsItsBodiesStrictly) {
  StartWithRoot();
  for (const char* body :
       {"", "[]", "{", R"({"lora_name":"a"})", R"({"lora_path":"sound"})", R"({"lora_name":"","lora_path":"sound"})",
        R"({"lora_name":1,"lora_path":"sound"})", R"({"lora_name":"a","lora_path":["sound"]})",
        R"({"lora_name":"a","lora_path":"sound","load_inplace":"yes"})",
        R"({"lora_name":"a","lora_path":"sound","pinned":1})", R"({"lora_name":"a\nb","lora_path":"sound"})",
        R"({"lora_name":"a","lora_path":"so\u0000und"})", R"({"lora_name":"a","lora_path":"sound","lora_int_id":1.5})",
        R"({"lora_name":"a","lora_path":"sound","base_model_name":"llama"})"}) {
    ExpectError(AskPost(kLoad, body), 400, "InvalidUserInput", "");
  }
  for (const char* name : {"a,b", "a\\\"b", "../x", "a/../b", "/a", "a b", "a='b'", "\\u00e9\\ud800"}) {
    ExpectStatus(AskPost(kLoad, "{\"lora_name\":\"" + std::string(name) + R"(","lora_path":"sound"})"), 400);
  }
  const std::string long_name = Load(std::string(10'000, 'n'), "sound");
  ExpectError(long_name, 400, "InvalidUserInput", "256");
  EXPECT_LT(long_name.size(), 1500U) << "it is not echoed whole";
  EXPECT_LT(AskPost(kUnload, LoadBody(std::string(10'000, 'n'), "")).size(), 1500U);
  ExpectStatus(AskPost(kUnload, "{}"), 400);
  EXPECT_EQ(service_.scripted_store().n_registered, 0);
  ExpectStatus(AskPost(kLoad, R"({"lora_name":"a","lora_path":"sound","base_model_name":"base","unknown":[1]})"), 200);
}

TEST_F(AdminRoutesTest, KeepsPathsUnderTheRoot) {
  StartWithRoot();
  std::filesystem::create_directory_symlink("/etc", directory_.path() + "/etc-by-link");
  for (const char* path : {"..", "../x", "/etc", "etc-by-link", "sound/../../x", "/proc/self/root", "/dev"}) {
    ExpectError(Load("new", path), 400, "InvalidUserInput", "--variant-root");
  }
  EXPECT_EQ(service_.scripted_store().n_registered, 0);
}

TEST_F(AdminRoutesTest, AParentIsInUseWhileOthersSitOnIt) {
  StartWithRoot();
  ExpectStatus(Load("parent", "sound"), 200);
  ExpectStatus(Load("child", "sound", R"(,"parent":"parent")"), 200);
  const std::string replaced = Load("parent", "other", R"(,"load_inplace":true)");
  ExpectError(replaced, 409, "ConflictError", "is the parent of");
  EXPECT_EQ(ErrorOf(replaced).value("code", ""), "in_use");
  const std::string unloaded = AskPost(kUnload, R"({"lora_name":"parent"})");
  ExpectError(unloaded, 409, "ConflictError", "is the parent of");
  EXPECT_EQ(ErrorOf(unloaded).value("code", ""), "in_use");
}

TEST_F(AdminRoutesTest, NothingTakesThePlaceOfTheBase) {
  StartWithRoot();
  const std::string refused = Load("base", "sound", R"(,"load_inplace":true)");
  ExpectError(refused, 400, "InvalidUserInput", "the base's name");
  EXPECT_EQ(ErrorOf(refused).value("code", ""), "invalid_name");
  EXPECT_EQ(service_.scripted_store().n_registered, 0);
}

TEST_F(AdminRoutesTest, IsOffUntilThereIsARoot) {
  Start();
  for (const char* path : {kLoad, kUnload, "/load_lora_adapter"}) {
    const std::string response = AskPost(path, LoadBody("math", "/tmp"));
    ExpectStatus(response, 403);
    EXPECT_NE(response.find("--variant-root"), std::string::npos);
  }
  ExpectStatus(AskPost("/v1/variants/sql/pin", ""), 200);
}

TEST_F(AdminRoutesTest, ComparesGenerationsBeforeItReplacesOrChanges) {
  StartWithRoot();
  ExpectStatus(Load("math", "sound"), 200);
  const std::string generation = Row("math")["generation"];
  const std::string stale = R"(,"load_inplace":true,"expected_generation":"stale")";
  ExpectError(Load("math", "other", stale), 409, "ConflictError", "generation");
  ExpectError(AskPost(kUnload, R"({"lora_name":"math","expected_generation":"stale"})"), 409, "ConflictError", "");
  const std::string pin = AskPost("/v1/variants/math/pin", R"({"expected_generation":"stale"})");
  ExpectStatus(pin, 409);
  EXPECT_NE(pin.find(R"("code":"generation_mismatch")"), std::string::npos);
  EXPECT_EQ(Row("math")["generation"], generation);
  ExpectStatus(Load("math", "other", R"(,"load_inplace":true,"expected_generation":")" + generation + "\""), 200);
  EXPECT_NE(Row("math")["generation"], generation);
}

TEST_F(AdminRoutesTest, PinsUnpinsPrefetchesAndEvicts) {
  Start();
  EXPECT_EQ(Row("sql")["pinned"], false);
  const std::string pinned = AskPost("/v1/variants/sql/pin", "");
  ExpectStatus(pinned, 200);
  EXPECT_NE(pinned.find(R"("pinned":true)"), std::string::npos);
  const std::string in_use = AskPost("/v1/variants/sql/evict", "{}");
  ExpectStatus(in_use, 409);
  EXPECT_NE(in_use.find(R"("code":"in_use")"), std::string::npos);
  service_.Add("no-room", {});
  const std::string no_room = AskPost("/v1/variants/no-room/pin", "");
  ExpectStatus(no_room, 409);
  EXPECT_NE(no_room.find(R"("code":"in_use")"), std::string::npos);
  EXPECT_EQ(no_room.find("Retry-After"), std::string::npos) << "it does not pass by itself";
  ExpectStatus(AskPost("/v1/variants/sql/unpin", "{}"), 200);
  ExpectStatus(AskPost("/v1/variants/sql/evict", ""), 200);
  EXPECT_EQ(Row("sql")["state"], "registered");
  ExpectStatus(AskPost("/v1/variants/sql/prefetch", ""), 200);
  EXPECT_EQ(Row("sql")["state"], "loading");
  ExpectStatus(AskPost("/v1/variants/nobody/pin", ""), 404);
  ExpectStatus(AskPost("/v1/variants/sql/pin", "[]"), 400);
  ExpectStatus(AskPost("/v1/variants/sql/frob", ""), 404);
  ExpectStatus(AskPost("/v1/variants//pin", ""), 404);
  ExpectStatus(Ask("GET /v1/variants/sql/pin HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"), 405);
}

TEST_F(AdminRoutesTest, TakesNamesWithSlashesPlainAndEscaped) {
  service_.Add("org/math/pin", {});
  Start();
  for (const char* name : {"org/math/pin", "org%2Fmath%2fpin", "org%2Fm%61th/pin"}) {
    ExpectStatus(AskPost("/v1/variants/" + std::string(name) + "/unpin", ""), 200);
  }
  for (const char* name : {"org%2", "org%zz", "org%00", "org%0Amath"}) {
    ExpectStatus(AskPost("/v1/variants/" + std::string(name) + "/pin", ""), 404);
  }
}

TEST_F(AdminRoutesTest, ListsWhatOperatorsWantToKnow) {
  service_.scripted_store().Edit("sql", [](VariantStatus& row) {
    row.state = ResidencyState::kFailed;
    row.failure = Corrupt("/srv/sql/delta.safetensors: a bit flipped");
    row.retry_in_ms = 1500;
    row.n_leases = 2;
    row.requests_per_s = 0.5;
    row.last_used_unix = 1700000001;
    row.load_seconds = 0.25;
    row.auto_pinned = true;
  });
  Start();
  const Json row = Row("sql");
  EXPECT_EQ(row["state"], "failed");
  EXPECT_EQ(row["failure"]["message"], "delta.safetensors: a bit flipped");
  EXPECT_EQ(row["failure"]["retry_in_seconds"], 1.5);
  EXPECT_EQ(row["in_flight"], 2);
  EXPECT_EQ(row["requests_per_second"], 0.5);
  EXPECT_EQ(row["last_used"], 1700000001);
  EXPECT_EQ(row["load_seconds"], 0.25);
  EXPECT_EQ(row["parent"], "base");
  EXPECT_EQ(row["kind"], "delta");
  EXPECT_EQ(row["auto_pinned"], true);
  EXPECT_EQ(row["tiers"], Json::array({"disk"}));
  const Result<Json> models = ParseJson(BodyOf(Ask(Get("/v1/models"))));
  ASSERT_TRUE(models.ok());
  EXPECT_EQ((*models)["data"][0]["parent"], nullptr);
  EXPECT_EQ((*models)["data"][0]["state"], "resident");
  EXPECT_EQ((*models)["data"][1]["parent"], "base");
  EXPECT_EQ((*models)["data"][1]["state"], "failed");
  EXPECT_EQ((*models)["data"][1]["pinned"], false);
}

TEST_F(AdminRoutesTest, SaysWhyARegisteredVariantCannotBeHad) {
  service_.scripted_store().Edit("sql", [](VariantStatus& row) {
    row.state = ResidencyState::kRegistered;
    row.failure = ResourceExhausted("needs 5 bytes");
  });
  Start();
  const Json row = Row("sql");
  EXPECT_EQ(row["state"], "registered");
  EXPECT_EQ(row["failure"]["message"], "needs 5 bytes");
  EXPECT_EQ(row["failure"]["retry_in_seconds"], nullptr);
}

TEST_F(AdminRoutesTest, ShowsResidencyAsItIsAtTheScrape) {
  Start();
  const auto running = [&] {
    const std::string text = Ask(Get("/metrics"));
    const size_t at = text.find("running_lora_adapters=\"") + 23;
    return text.substr(at, text.find('"', at) - at);
  };
  EXPECT_EQ(running(), "sql");
  ExpectStatus(AskPost("/v1/variants/sql/evict", ""), 200);
  EXPECT_EQ(running(), "");
  EXPECT_NE(Ask(Get("/metrics"))
                .find(R"(deltafold_variant_resident{variant="sql",kind="delta",tier="host",pinned="false"} 0)"),
            std::string::npos);
}

TEST_F(AdminRoutesTest, WantsTheAdminKeyOnEveryRouteThatChangesSomething) {
  options_.keys = {.api = {"user"}, .admin = {"boss"}};
  StartWithRoot();
  const std::string boss = "Authorization: Bearer boss\r\n", user = "Authorization: Bearer user\r\n";
  for (const char* path : {kLoad, kUnload, "/load_lora_adapter", "/unload_lora_adapter", "/v1/variants/sql/pin",
                           "/v1/variants/sql/unpin", "/v1/variants/sql/prefetch", "/v1/variants/sql/evict"}) {
    for (const std::string& headers : {std::string(), user, std::string("Authorization: Bearer bosz\r\n")}) {
      const std::string response = AskPost(path, "{}", headers);
      ExpectStatus(response, 401);
      EXPECT_NE(response.find(R"("code":"invalid_api_key")"), std::string::npos);
    }
  }
  ExpectStatus(AskPost(kLoad, LoadBody("math", "sound"), boss), 200);
  const std::string get = "GET /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n";
  ExpectStatus(Ask(get + boss + "\r\n"), 200);  // controllers have one key for both
  ExpectStatus(Ask(get + user + "\r\n"), 200);
  ExpectStatus(Ask(get + "\r\n"), 401);
}

TEST_F(AdminRoutesTest, RefusesForeignHostsOriginsAndProxies) {
  StartWithRoot();
  const auto ask = [&](const std::string& headers) {
    return Ask("POST /v1/variants/sql/pin HTTP/1.1\r\nConnection: close\r\n" + headers + "\r\n");
  };
  ExpectStatus(ask("Host: evil.example\r\n"), 403);
  ExpectStatus(ask("Host: 127.0.0.1\r\nOrigin: http://evil.example\r\n"), 403);
  ExpectStatus(ask("Host: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\nOrigin: http://evil.example\r\n"), 403);
  ExpectStatus(ask("Host: 127.0.0.1\r\nX-Forwarded-For: 192.0.2.1\r\n"), 403);
  ExpectStatus(ask("Host: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\n"), 200);
}

TEST_F(AdminRoutesTest, TakesSmallBodiesOnly) {
  StartWithRoot();
  ExpectStatus(AskPost(kLoad, LoadBody("a", "sound", ",\"x\":\"" + std::string(70'000, 'x') + "\"")), 413);
  std::string chunked =
      "POST " + std::string(kLoad) + " HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 70; ++i) chunked += "400\r\n" + std::string(0x400, ' ') + "\r\n";
  ExpectStatus(Ask(chunked), 413);
  ExpectStatus(AskPost(kLoad, LoadBody("a", "sound", ",\"x\":\"" + std::string(60'000, 'x') + "\"")), 200);
}

TEST_F(AdminRoutesTest, KeepsAnsweringWhileLoadsAreSlowAndBoundsTheirQueue) {
  options_.limits.n_admin_workers = 2;
  options_.limits.max_queued_admin_jobs = 1;
  StartWithRoot();
  std::vector<std::unique_ptr<RawClient>> clients;
  const auto load = [&](const std::string& name) {
    clients.push_back(std::make_unique<RawClient>(port()));
    SendSlowLoad(*clients.back(), name);
  };
  load("a");
  ASSERT_TRUE(Soon([&] { return service_.scripted_store().n_registering == 1; }));  // one at a time: one may queue
  load("b");
  ASSERT_TRUE(Soon([&] { return service_.scripted_store().n_registering == 2; }));
  for (const char* path : {"/health", "/metrics", "/v1/models", "/v1/variants"}) ExpectStatus(Ask(Get(path)), 200);
  ExpectStatus(AskChat("sql"), 200);
  load("c");  // waits, or is the one too many
  load("d");
  std::string full;
  ASSERT_TRUE(Soon([&] {
    for (size_t i = 2; i < 4 && full.empty(); ++i) full = clients[i]->ReadUntil("\r\n\r\n", 5);
    return !full.empty();
  }));
  ExpectStatus(full, 429);
  service_.scripted_store().gate.Open();
  ExpectStatus(clients[0]->ReadResponse(), 200);
  ExpectStatus(clients[1]->ReadResponse(), 200);
}

TEST_F(AdminRoutesTest, LoadsANameOnceHoweverManyAskAtOnce) {
  StartWithRoot();
  std::vector<std::thread> threads;
  std::atomic<int> n_added{0}, n_already{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const std::string response = Load("math", "sound");
      if (response.starts_with("HTTP/1.1 200 ")) ++n_added;
      if (response.find("has already been loaded") != std::string::npos) ++n_already;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(n_added, 1);
  EXPECT_EQ(n_already, 7);
}

TEST_F(AdminRoutesTest, FinishesALoadUnderWayAndTakesNoNewOneWhileDraining) {
  StartWithRoot();
  RawClient client(port());
  SendSlowLoad(client, "math");
  ASSERT_TRUE(Soon([&] { return service_.scripted_store().n_registering == 1; }));
  server_->Shutdown(RawClient::kPatienceMs);
  ASSERT_TRUE(Soon([&] { return Ask(Get("/ready")).starts_with("HTTP/1.1 503 "); }));
  ExpectStatus(Load("other", "sound"), 503);
  service_.scripted_store().gate.Open();
  ExpectStatus(client.ReadResponse(), 200);
  EXPECT_TRUE(server_->WaitEnded(RawClient::kPatienceMs));
}

TEST_F(AdminRoutesTest, AClientThatLeavesLeavesItsLoadToEnd) {
  StartWithRoot();
  {
    RawClient client(port());
    SendSlowLoad(client, "math");
    ASSERT_TRUE(Soon([&] { return service_.scripted_store().n_registering == 1; }));
  }
  service_.scripted_store().gate.Open();
  EXPECT_TRUE(Soon([&] { return service_.scripted_store().n_registered == 1; }));
}

TEST_F(AdminRoutesTest, IsNotReadyBeforeThePinnedVariantsAreThere) {
  service_.scripted_store().ready = false;
  Start();
  ExpectStatus(Ask(Get("/ready")), 503);
  ExpectStatus(Ask(Get("/health")), 200);
  service_.scripted_store().ready = true;
  ExpectStatus(Ask(Get("/ready")), 200);
}

TEST_F(AdminRoutesTest, AnswersForAVariantWhoseLoadFailedWith503AndTheCause) {
  service_.Add("broken", {.pieces = {}, .failure = Corrupt("/srv/broken/delta.safetensors: a bit flipped")});
  service_.Add("cold", {.pieces = {}, .failure = Unavailable("all places are taken")});
  Start();
  for (const auto& [name, cause] :
       {std::pair{"broken", "delta.safetensors: a bit flipped"}, std::pair{"cold", "all places are taken"}}) {
    for (const char* more : {"", R"(,"stream":true)"}) {
      const std::string response = AskChat(name, more);
      ExpectStatus(response, 503);
      EXPECT_NE(response.find("Retry-After: "), std::string::npos);
      EXPECT_NE(response.find(cause), std::string::npos);
      EXPECT_EQ(response.find("/srv"), std::string::npos);
    }
  }
}

TEST_F(AdminRoutesTest, SaysWhenALoadThatFailedIsTriedAgain) {
  service_.Add("broken", {.pieces = {}, .failure = Unavailable("generation_gone: its files were changed in place")});
  service_.scripted_store().Edit("broken", [](VariantStatus& row) {
    row.state = ResidencyState::kFailed;
    row.retry_in_ms = 4200;
  });
  Start();
  const std::string response = AskChat("broken");
  ExpectStatus(response, 503);
  EXPECT_NE(response.find("Retry-After: 5\r\n"), std::string::npos) << response;
  EXPECT_NE(response.find(R"("code":"generation_gone")"), std::string::npos) << response;
}

TEST_F(AdminRoutesTest, LogsWhatIsChangedAndWhyNot) {
  StartWithRoot();
  Load("math", "corrupt");
  ASSERT_TRUE(Soon([&] {
    const std::lock_guard lock(log_mutex_);
    return logs_.size() == 1;
  }));
  EXPECT_EQ(logs_[0].subject, "math");
  EXPECT_NE(logs_[0].cause.find(directory_.path()), std::string::npos) << "whoever reads the log may know the place";
}

}  // namespace
}  // namespace df::server
