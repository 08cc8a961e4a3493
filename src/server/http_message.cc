#include "server/http_message.h"

#include <charconv>

namespace df::server {
namespace {

int HexDigitOrMinusOne(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string_view ReasonPhrase(int status) {
  switch (status) {
    case 100: return "Continue";
    case 200: return "OK";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 409: return "Conflict";
    case 413: return "Content Too Large";
    case 417: return "Expectation Failed";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    default: return "Internal Server Error";
  }
}

std::string RenderHead(const HttpResponse& response, HeadOptions options) {
  std::string head = "HTTP/1.1 " + std::to_string(response.status) + " ";
  head += ReasonPhrase(response.status);
  head += "\r\nServer: deltafold\r\nContent-Type: " + response.content_type + "\r\n";
  for (const auto& [name, value] : response.headers) head += name + ": " + value + "\r\n";
  if (options.framing == BodyFraming::kLength) {
    head += "Content-Length: " + std::to_string(response.body.size()) + "\r\n";
  } else if (options.framing == BodyFraming::kChunked) {
    head += "Transfer-Encoding: chunked\r\n";
  }
  head += options.keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  return head;
}

std::string RenderChunk(std::string_view data) {
  char size[20];
  const auto end = std::to_chars(size, size + sizeof(size), data.size(), 16).ptr;
  std::string chunk(size, end);
  chunk.reserve(chunk.size() + data.size() + 4);
  chunk += "\r\n";
  chunk += data;
  chunk += "\r\n";
  return chunk;
}

bool PercentDecode(std::string_view text, std::string& decoded) {
  decoded.clear();
  for (size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (c == '%') {
      if (i + 2 >= text.size()) return false;
      const int high = HexDigitOrMinusOne(text[i + 1]);
      const int low = HexDigitOrMinusOne(text[i + 2]);
      if (high < 0 || low < 0) return false;
      c = static_cast<char>(high * 16 + low);
      i += 2;
    }
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) return false;
    decoded += c;
  }
  return true;
}

}  // namespace df::server
