#include "server/http_reader.h"

#include <gtest/gtest.h>

namespace df::server {
namespace {

using State = HttpReader::State;
const ServerLimits kLimits;

struct Reading {
  State state;
  int status = 0;
  HttpRequest request;
  size_t left_bytes = 0;
};

// Offers `bytes` in pieces of `step`, as a socket would.
Reading Read(std::string_view bytes, size_t step = SIZE_MAX, const ServerLimits& limits = kLimits) {
  HttpReader reader(limits);
  std::string buffer;
  size_t offered = 0;
  while (reader.state() == State::kHeader || reader.state() == State::kBody) {
    const size_t used = reader.Feed(buffer);
    buffer.erase(0, used);
    if (used > 0) continue;
    if (reader.state() != State::kHeader && reader.state() != State::kBody) break;
    if (offered == bytes.size()) break;
    const std::string_view piece = bytes.substr(offered, step);
    buffer += piece;
    offered += piece.size();
  }
  return {reader.state(), reader.refused_status(), reader.request(), buffer.size() + bytes.size() - offered};
}

constexpr std::string_view kGet = "GET /health?x=1 HTTP/1.1\r\nHost: a\r\nX-Request-Id: abc\r\n\r\n";
constexpr std::string_view kPost = "POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
constexpr std::string_view kChunked =
    "POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;ext=1\r\nlo\r\n0\r\nTrailer: "
    "t\r\n\r\n";

TEST(HttpReader, ReadsTheSameRequestHoweverItsBytesAreCut) {
  for (const std::string_view bytes : {kGet, kPost, kChunked}) {
    for (size_t step = 1; step <= bytes.size(); ++step) {
      const Reading reading = Read(bytes, step);
      ASSERT_EQ(reading.state, State::kDone) << bytes << " in steps of " << step;
      ASSERT_EQ(reading.request.body, bytes == kGet ? "" : "hello");
    }
  }
}

TEST(HttpReader, WaitsForMoreOnEveryTruncation) {
  for (const std::string_view bytes : {kGet, kPost, kChunked}) {
    for (size_t length = 0; length < bytes.size(); ++length) {
      const Reading reading = Read(bytes.substr(0, length));
      ASSERT_TRUE(reading.state == State::kHeader || reading.state == State::kBody) << bytes.substr(0, length);
    }
  }
}

TEST(HttpReader, TakesPathWithoutQueryAndTheRequestId) {
  const Reading reading = Read(kGet);
  EXPECT_EQ(reading.request.method, "GET");
  EXPECT_EQ(reading.request.path, "/health");
  EXPECT_EQ(reading.request.request_id, "abc");
  EXPECT_TRUE(reading.request.keep_alive);
}

TEST(HttpReader, LeavesThePipelinedNextRequestAlone) {
  const std::string two = std::string(kPost) + std::string(kGet);
  EXPECT_EQ(Read(two).left_bytes, kGet.size());
}

TEST(HttpReader, AcceptsEmptyLinesBeforeARequest) {
  EXPECT_EQ(Read("\r\n\r\n" + std::string(kGet)).state, State::kDone);
}

struct Bad {
  const char* what;
  std::string bytes;
  int status;
};

TEST(HttpReader, RefusesWhatTwoReadersCouldReadDifferently) {
  const std::string post = "POST / HTTP/1.1\r\nHost: a\r\n";
  const std::string chunked = post + "Transfer-Encoding: chunked\r\n\r\n";
  const Bad cases[] = {
      {"length and chunks", post + "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"chunks and length", post + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400},
      {"two lengths", post + "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400},
      {"two equal lengths", post + "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400},
      {"length -1", post + "Content-Length: -1\r\n\r\n", 400},
      {"length +5", post + "Content-Length: +5\r\n\r\nhello", 400},
      {"length 2^63", post + "Content-Length: 9223372036854775808\r\n\r\n", 413},
      {"length 2^64", post + "Content-Length: 18446744073709551616\r\n\r\n", 400},
      {"hex length", post + "Content-Length: 0x5\r\n\r\nhello", 400},
      {"empty length", post + "Content-Length:\r\n\r\n", 400},
      {"gzip", post + "Transfer-Encoding: gzip\r\n\r\n", 400},
      {"gzip, chunked", post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400},
      {"two codings", post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"chunks in HTTP/1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
      {"chunk size not hex", chunked + "xyz\r\nhello\r\n", 400},
      {"chunk size negative", chunked + "-1\r\nhello\r\n", 400},
      {"chunk size 2^64", chunked + "10000000000000000\r\nhello\r\n", 400},
      {"chunk size beyond the limit", chunked + "fffffffffffffff\r\nhello\r\n", 413},
      {"chunk longer than its size", chunked + "2\r\nhello\r\n0\r\n\r\n", 400},
      {"chunk line ends in LF", chunked + "5\nhello\r\n0\r\n\r\n", 400},
      {"endless chunk extension", chunked + "5;" + std::string(10000, 'a'), 400},
      {"request line ends in LF", "GET / HTTP/1.1\nHost: a\r\n\r\n", 400},
      {"header line ends in LF", "GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", 400},
      {"header ends in LF", "GET / HTTP/1.1\r\nHost: a\r\n\n", 400},
      {"CR alone", "GET / HTTP/1.1\r\nHost: a\rX: y\r\n\r\n", 400},
      {"NUL in the target", std::string("GET /a") + '\0' + "b HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"NUL in a value", std::string("GET / HTTP/1.1\r\nHost: a") + '\0' + "\r\n\r\n", 400},
      {"space before the colon", "GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400},
      {"no name", "GET / HTTP/1.1\r\n: a\r\n\r\n", 400},
      {"no host", "GET / HTTP/1.1\r\n\r\n", 400},
      {"two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"HTTP/3.0", "GET / HTTP/3.0\r\nHost: a\r\n\r\n", 400},
      {"no version", "GET /\r\n\r\n", 400},
      {"noise", "\x80\x81\x82\r\n\r\n", 400},
      {"unknown expectation", post + "Expect: tea\r\n\r\n", 417},
  };
  for (const Bad& bad : cases) {
    for (const size_t step : {SIZE_MAX, size_t{1}}) {
      const Reading reading = Read(bad.bytes, step);
      EXPECT_EQ(reading.state, State::kRefused) << bad.what;
      EXPECT_EQ(reading.status, bad.status) << bad.what;
    }
  }
}

TEST(HttpReader, RefusesLongAndManyHeaders) {
  const std::string start = "GET / HTTP/1.1\r\nHost: a\r\n";
  EXPECT_EQ(Read(start + "X: " + std::string(10 << 20, 'a')).status, 431);
  EXPECT_EQ(Read("GET /" + std::string(1 << 20, 'a'), 4096).status, 431);
  std::string many = start;
  for (int i = 0; i < 10000; ++i) many += "a:b\r\n";
  EXPECT_EQ(Read(many + "\r\n").status, 431);
  std::string just_too_many = start;
  for (size_t i = 0; i < kLimits.max_header_fields; ++i) just_too_many += "a:b\r\n";
  EXPECT_EQ(Read(just_too_many + "\r\n").status, 431);
}

TEST(HttpReader, CountsTheBytesOfManySmallChunksAgainstTheLimit) {
  ServerLimits limits;
  limits.max_body_bytes = 1000;
  std::string bytes = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int i = 0; i < 200; ++i) bytes += "6\r\nabcdef\r\n";
  EXPECT_EQ(Read(bytes, 7, limits).status, 413);
  EXPECT_EQ(Read("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\n", 7, limits).status, 413);
}

TEST(HttpReader, KnowsOtherProtocolsByTheirFirstBytes) {
  EXPECT_EQ(Read("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").state, State::kForeign);
  EXPECT_EQ(Read("\x16\x03\x01\x02\x00\x01").state, State::kForeign);
}

TEST(HttpReader, TakesTheClientsWordOnKeepAlive) {
  EXPECT_FALSE(Read("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").request.keep_alive);
  EXPECT_FALSE(Read("GET / HTTP/1.0\r\n\r\n").request.keep_alive);
  EXPECT_TRUE(Read("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").request.keep_alive);
}

TEST(HttpReader, DropsARequestIdThatCouldNotBeEchoed) {
  const std::string start = "GET / HTTP/1.1\r\nHost: a\r\nX-Request-Id: ";
  EXPECT_EQ(Read(start + std::string(129, 'a') + "\r\n\r\n").request.request_id, "");
  EXPECT_EQ(Read(start + "a b\r\n\r\n").request.request_id, "");
}

TEST(HttpReader, KeepsWhatTellsWhereARequestComesFrom) {
  const std::string start = "POST / HTTP/1.1\r\nHost: llm.example:8000\r\n";
  const HttpRequest plain = Read(start + "\r\n").request;
  EXPECT_EQ(plain.host + "|" + plain.origin, "llm.example:8000|");
  EXPECT_FALSE(plain.forwarded);
  EXPECT_EQ(Read(start + "Origin: http://a\r\n\r\n").request.origin, "http://a");
  EXPECT_EQ(Read(start + "Origin: http://a\r\norigin: http://b\r\n\r\n").request.origin, "http://a http://b");
  for (const char* header : {"Forwarded: for=1.2.3.4", "X-Forwarded-For: 1.2.3.4", "x-real-ip: 1.2.3.4"}) {
    EXPECT_TRUE(Read(start + header + "\r\n\r\n").request.forwarded) << header;
  }
}

TEST(HttpReader, BoundsTheBodyOfOneRequest) {
  for (const auto& [text, is_small] :
       {std::pair{kPost, true}, std::pair{kChunked, true},
        std::pair{std::string_view("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nhello!"), false},
        std::pair{std::string_view("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                                   "3\r\nhel\r\n3\r\nlo!\r\n0\r\n\r\n"),
                  false}}) {
    HttpReader reader(kLimits);
    size_t used = reader.Feed(text);
    ASSERT_EQ(reader.state(), State::kBody);
    reader.LimitBody(5);
    while (reader.state() == State::kBody && used < text.size()) used += reader.Feed(text.substr(used));
    EXPECT_EQ(reader.state(), is_small ? State::kDone : State::kRefused) << text;
    EXPECT_EQ(reader.refused_status(), is_small ? 0 : 413);
  }
}

TEST(PercentDecode, RefusesBrokenEscapesAndControlCharacters) {
  std::string decoded;
  EXPECT_TRUE(PercentDecode("a%2Fb%3ac", decoded));
  EXPECT_EQ(decoded, "a/b:c");
  for (const char* bad : {"%", "%4", "%zz", "a%00b", "%0d%0a", "%7f"}) EXPECT_FALSE(PercentDecode(bad, decoded)) << bad;
}

}  // namespace
}  // namespace df::server
