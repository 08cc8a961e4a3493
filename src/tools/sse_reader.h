// Server-sent events (WHATWG HTML, section 9.2) out of pieces of a stream.
#ifndef DELTAFOLD_TOOLS_SSE_READER_H_
#define DELTAFOLD_TOOLS_SSE_READER_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace df::tools {

// Thread-compatible. Fields other than `data` and comments are skipped; lines end in LF or CRLF.
class SseReader {
 public:
  // Bytes of one event, its lines unfinished or not; a chunk of an answer has some hundred.
  static constexpr size_t kMaxEventBytes = size_t{1} << 20;

  // Appends the data of every event that is complete now to `events`. The only error is kResourceExhausted (an event
  // beyond the limit); the reader is of no use then.
  Status Feed(std::string_view bytes, std::vector<std::string>& events);

 private:
  void TakeLine(std::string_view line, std::vector<std::string>& events);

  std::string line_;  // not ended yet
  std::string data_;  // of the event at hand
  bool has_data_ = false;
};

}  // namespace df::tools

#endif  // DELTAFOLD_TOOLS_SSE_READER_H_
