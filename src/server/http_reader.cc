#include "server/http_reader.h"

#include <algorithm>
#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <optional>

namespace df::server {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

// A string that grows with what arrives: Beast's own string body reserves whatever Content-Length claims.
struct GrowingBody {
  using value_type = std::string;
  class reader {
   public:
    template <bool kRequest, class Fields>
    reader(http::header<kRequest, Fields>&, value_type& body) : body_(body) {}
    void init(const boost::optional<std::uint64_t>&, error_code& error) { error = {}; }
    template <class Buffers>
    std::size_t put(const Buffers& buffers, error_code& error) {
      error = {};
      size_t n_bytes = 0;
      for (auto it = asio::buffer_sequence_begin(buffers); it != asio::buffer_sequence_end(buffers); ++it) {
        const asio::const_buffer part(*it);
        body_.append(static_cast<const char*>(part.data()), part.size());
        n_bytes += part.size();
      }
      return n_bytes;
    }
    void finish(error_code& error) { error = {}; }

   private:
    value_type& body_;
  };
};

// A chunk's size line with its extensions; longer ones only serve to hold memory.
constexpr size_t kMaxChunkLineBytes = 4096;

// Position of an LF without CR before it (or CR without LF behind it) in [from, size), or npos.
size_t FindBareLineEnd(std::string_view bytes, size_t from) {
  for (size_t i = from; i < bytes.size(); ++i) {
    if (bytes[i] == '\n' && (i == 0 || bytes[i - 1] != '\r')) return i;
    if (bytes[i] == '\r' && i + 1 < bytes.size() && bytes[i + 1] != '\n') return i;
  }
  return std::string_view::npos;
}

bool IsForeign(std::string_view bytes) {
  constexpr std::string_view kHttp2 = "PRI * HTTP/2";
  if (bytes[0] == '\x16') return true;  // a TLS handshake record
  return bytes.starts_with(kHttp2);
}

bool IsVisibleAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7F; });
}

std::string_view View(boost::beast::string_view text) { return {text.data(), text.size()}; }

std::string PathOf(std::string_view target) {
  if (const size_t query = target.find_first_of("?#"); query != std::string_view::npos)
    target = target.substr(0, query);
  if (target.starts_with("http://") || target.starts_with("https://")) {
    const size_t path = target.find('/', target.find("//") + 2);
    return path == std::string_view::npos ? "/" : std::string(target.substr(path));
  }
  return std::string(target);
}

}  // namespace

struct HttpReader::Parser {
  http::request_parser<GrowingBody> beast;
};

HttpReader::HttpReader(const ServerLimits& limits)
    : limits_(limits), body_limit_(limits.max_body_bytes), parser_(std::make_unique<Parser>()) {
  parser_->beast.eager(true);
  parser_->beast.body_limit(body_limit_);
  // Ours counts first and names the number; Beast's only must not come before it.
  parser_->beast.header_limit(static_cast<std::uint32_t>(limits.max_header_bytes + 64));
}

HttpReader::~HttpReader() = default;

size_t HttpReader::body_bytes() const { return parser_->beast.get().body().size(); }

void HttpReader::Refuse(int status, std::string reason) {
  state_ = State::kRefused;
  refused_status_ = status;
  refused_reason_ = std::move(reason);
}

size_t HttpReader::Feed(std::string_view bytes) {
  if (bytes.empty()) return 0;
  if (state_ == State::kHeader) return FeedHeader(bytes);
  if (state_ == State::kBody) return FeedBody(bytes);
  return 0;
}

size_t HttpReader::FeedHeader(std::string_view bytes) {
  if (scanned_bytes_ == 0 && bytes.starts_with("\r\n")) return 2;  // RFC 9112, 2.2: an empty line before a request
  if (IsForeign(bytes)) {
    state_ = State::kForeign;
    return 0;
  }
  const size_t from = scanned_bytes_ < 3 ? 0 : scanned_bytes_ - 3;
  const size_t end = bytes.find("\r\n\r\n", from);
  const size_t header_bytes = end == std::string_view::npos ? bytes.size() : end + 4;
  if (FindBareLineEnd(bytes.substr(0, header_bytes), from) != std::string_view::npos) {
    Refuse(400, "a header line does not end in CRLF");
    return 0;
  }
  if (header_bytes > limits_.max_header_bytes) {
    Refuse(431, "the header has more than " + std::to_string(limits_.max_header_bytes) + " bytes");
    return 0;
  }
  if (end == std::string_view::npos) {
    scanned_bytes_ = bytes.size();
    return 0;
  }
  error_code error;
  parser_->beast.put(asio::const_buffer(bytes.data(), header_bytes), error);
  if (error == http::error::body_limit) {
    Refuse(413, "the body has more than " + std::to_string(body_limit_) + " bytes");
  } else if (error && error != http::error::need_more) {
    Refuse(400, "the header is not valid HTTP: " + error.message());
  } else if (!parser_->beast.is_header_done()) {
    Refuse(400, "the header is not valid HTTP");
  } else {
    TakeHeader();
  }
  return header_bytes;
}

void HttpReader::TakeHeader() {
  const auto& header = parser_->beast.get();
  request_.http_1_1 = header.version() == 11;
  if (header.version() != 11 && header.version() != 10)
    return Refuse(400, "only HTTP/1.1 and HTTP/1.0 are spoken here");
  if (std::distance(header.begin(), header.end()) > static_cast<std::ptrdiff_t>(limits_.max_header_fields)) {
    return Refuse(431, "the header has more than " + std::to_string(limits_.max_header_fields) + " fields");
  }
  if (header.count(http::field::host) != 1 && request_.http_1_1) return Refuse(400, "exactly one Host header is due");
  if (header.count(http::field::content_length) > 1) return Refuse(400, "more than one Content-Length");
  const bool chunked = parser_->beast.chunked();
  if (header.count(http::field::transfer_encoding) != 0) {
    const auto coding = header[http::field::transfer_encoding];
    if (!chunked || !request_.http_1_1 || !boost::beast::iequals(coding, "chunked")) {
      return Refuse(400, "Transfer-Encoding other than chunked");
    }
  }
  const auto expect = header[http::field::expect];
  if (!expect.empty() && !boost::beast::iequals(expect, "100-continue")) return Refuse(417, "unknown Expect header");
  request_.expects_continue = !expect.empty() && request_.http_1_1;
  request_.method = std::string(View(header.method_string()));
  request_.path = PathOf(View(header.target()));
  if (header.count(http::field::authorization) == 1) {
    request_.authorization = std::string(View(header[http::field::authorization]));
  }
  request_.host = std::string(View(header[http::field::host]));
  // Several are as foreign as any: they are joined, which equals no host.
  for (const auto& field : header) {
    if (field.name() == http::field::origin) request_.origin += std::string(View(field.value())) + " ";
  }
  if (!request_.origin.empty()) request_.origin.pop_back();
  request_.forwarded = header.count("Forwarded") + header.count("X-Forwarded-For") + header.count("X-Real-IP") > 0;
  const auto id = View(header["X-Request-Id"]);
  if (id.size() <= 128 && IsVisibleAscii(id)) request_.request_id = std::string(id);
  request_.keep_alive = parser_->beast.keep_alive();
  const auto length = parser_->beast.content_length();
  request_.has_body = chunked || (length.has_value() && *length > 0);
  state_ = request_.has_body ? State::kBody : State::kDone;
}

void HttpReader::LimitBody(size_t max_bytes) {
  const auto length = parser_->beast.content_length();
  if (length.has_value() && *length > max_bytes) {
    return Refuse(413, "the body of this route has at most " + std::to_string(max_bytes) + " bytes");
  }
  body_limit_ = max_bytes;
  parser_->beast.body_limit(max_bytes);  // what comes in chunks
}

size_t HttpReader::FeedBody(std::string_view bytes) {
  size_t used = 0;
  error_code error;
  while (used < bytes.size() && !parser_->beast.is_done()) {
    used += parser_->beast.put(asio::const_buffer(bytes.data() + used, bytes.size() - used), error);
    if (error) break;
  }
  if (error == http::error::body_limit) {
    Refuse(413, "the body has more than " + std::to_string(body_limit_) + " bytes");
  } else if (error && error != http::error::need_more) {
    Refuse(400, "the body is not valid HTTP: " + error.message());
  } else if (parser_->beast.is_done()) {
    request_.body = std::move(parser_->beast.get().body());
    state_ = State::kDone;
  } else if (bytes.size() - used > kMaxChunkLineBytes) {
    Refuse(400, "a chunk header has more than " + std::to_string(kMaxChunkLineBytes) + " bytes");
  } else if (FindBareLineEnd(bytes.substr(used), 0) != std::string_view::npos) {
    Refuse(400, "a chunk header does not end in CRLF");
  }
  return used;
}

}  // namespace df::server
