#include "server/admin_access.h"

#include <gtest/gtest.h>

namespace df::server {
namespace {

struct Caller {
  std::string key = {}, host = "127.0.0.1:8000", origin = {};
  bool loopback = true, forwarded = false;
};

int StatusFor(const AccessKeys& keys, const Caller& caller, const std::vector<std::string>& hosts = {}) {
  HttpRequest request;
  if (!caller.key.empty()) request.authorization = "Bearer " + caller.key;
  request.host = caller.host;
  request.origin = caller.origin;
  request.forwarded = caller.forwarded;
  const auto refusal =
      RefuseAdmin({.keys = keys, .allowed_hosts = hosts, .peer_is_loopback = caller.loopback}, request);
  return refusal ? refusal->status : 200;
}

const AccessKeys kNone, kUsers = {.api = {"user"}, .admin = {}}, kBoth = {.api = {"user"}, .admin = {"boss"}},
                        kBoss = {.api = {}, .admin = {"boss"}};

TEST(AdminAccess, WantsTheAdminKeyWhereThereIsOne) {
  for (const AccessKeys& keys : {kBoth, kBoss}) {
    EXPECT_EQ(StatusFor(keys, {.key = "boss", .loopback = false}), 200);
    for (const char* key : {"", "user", "bos", "bosss", "Boss"}) EXPECT_EQ(StatusFor(keys, {.key = key}), 401) << key;
  }
}

TEST(AdminAccess, TakesTheApiKeyWhereThereIsNoOther) {
  EXPECT_EQ(StatusFor(kUsers, {.key = "user", .loopback = false}), 200);
  EXPECT_EQ(StatusFor(kUsers, {.key = ""}), 401);
  EXPECT_EQ(StatusFor(kUsers, {.key = "boss"}), 401);
}

TEST(AdminAccess, IsThisMachinesWithoutAnyKey) {
  EXPECT_EQ(StatusFor(kNone, {}), 200);
  EXPECT_EQ(StatusFor(kNone, {.loopback = false}), 403);
  EXPECT_EQ(StatusFor(kNone, {.forwarded = true}), 403) << "a proxy on this machine speaks for anybody";
  EXPECT_EQ(StatusFor(kUsers, {.key = "user", .forwarded = true}), 200);
}

TEST(AdminAccess, RefusesNamesThatSomebodyElseMayHavePointedHere) {
  for (const char* host : {"evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example", "1",
                           "0x7f.1", "[::1].evil.example:80", "[evil]", ":8000", "user@127.0.0.1"}) {
    EXPECT_EQ(StatusFor(kNone, {.host = host}), 403) << host;
    EXPECT_EQ(StatusFor(kBoth, {.key = "boss", .host = host}), 403) << host;
  }
  for (const char* host : {"10.1.2.3:8000", "localhost", "LocalHost:80", "[::1]:8000", "[fe80::1]", ""}) {
    EXPECT_EQ(StatusFor(kNone, {.host = host}), 200) << host;
  }
  EXPECT_EQ(StatusFor(kNone, {.host = "Llm.Example:8000"}, {"llm.example"}), 200);
  EXPECT_EQ(StatusFor(kNone, {.host = "evil.example"}, {"llm.example"}), 403);
}

TEST(AdminAccess, RefusesPagesOfAnotherOrigin) {
  for (const char* origin : {"http://evil.example", "null", "http://127.0.0.1", "http://127.0.0.1:8001",
                             "file://127.0.0.1:8000", "http://127.0.0.1:8000 http://evil.example"}) {
    EXPECT_EQ(StatusFor(kNone, {.origin = origin}), 403) << origin;
  }
  EXPECT_EQ(StatusFor(kNone, {.origin = "http://127.0.0.1:8000"}), 200);
  EXPECT_EQ(StatusFor(kNone, {.origin = "https://127.0.0.1:8000"}), 200);
}

TEST(AdminAccess, LetsAnyKeyUseWhatUsersMay) {
  HttpRequest request;
  request.authorization = "Bearer boss";
  EXPECT_TRUE(IsUser(kBoth, request));
  EXPECT_FALSE(IsUser(kUsers, request));
  EXPECT_TRUE(IsUser(kBoss, request)) << "an admin key alone closes nothing to users";
}

}  // namespace
}  // namespace df::server
