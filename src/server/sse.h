// Server-sent events as OpenAI's clients read them.
#ifndef DELTAFOLD_SERVER_SSE_H_
#define DELTAFOLD_SERVER_SSE_H_

#include <string>
#include <string_view>

namespace df::server {

inline constexpr std::string_view kSseContentType = "text/event-stream; charset=utf-8";
inline constexpr std::string_view kSseDone = "data: [DONE]\n\n";
inline constexpr std::string_view kSseComment = ": keep-alive\n\n";

// `json` is one line (DumpJson), so that one data line is the whole event.
inline std::string SseEvent(std::string_view json) {
  std::string event = "data: ";
  event += json;
  event += "\n\n";
  return event;
}

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_SSE_H_
