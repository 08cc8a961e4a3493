#include "tools/sse_reader.h"

namespace df::tools {

Status SseReader::Feed(std::string_view bytes, std::vector<std::string>& events) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    const std::string_view part = bytes.substr(0, end);
    if (line_.size() + part.size() + data_.size() > kMaxEventBytes) {
      return ResourceExhausted("an event of more than " + std::to_string(kMaxEventBytes) + " bytes");
    }
    line_ += part;
    if (end == std::string_view::npos) break;
    bytes.remove_prefix(end + 1);
    if (line_.ends_with('\r')) line_.pop_back();
    TakeLine(line_, events);
    line_.clear();
  }
  return Status::Ok();
}

void SseReader::TakeLine(std::string_view line, std::vector<std::string>& events) {
  constexpr std::string_view kData = "data:";
  if (line.empty()) {
    if (has_data_) events.push_back(std::move(data_));
    data_.clear();
    has_data_ = false;
  } else if (line.starts_with(kData)) {
    line.remove_prefix(kData.size());
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (has_data_) data_ += '\n';
    data_ += line;
    has_data_ = true;
  }
}

}  // namespace df::tools
