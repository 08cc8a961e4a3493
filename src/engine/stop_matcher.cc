#include "engine/stop_matcher.h"

#include "engine/session.h"

namespace df {

Result<StopMatcher> StopMatcher::Create(const std::vector<std::string>& stops) {
  size_t n_bytes = 0;
  for (const std::string& stop : stops) {
    if (stop.empty()) return InvalidArgument("stop: an empty stop string would end every answer at once");
    n_bytes += stop.size();
  }
  if (n_bytes > kMaxStopBytes) {
    return InvalidArgument("stop: the stop strings have " + std::to_string(n_bytes) + " bytes together, more than " +
                           std::to_string(kMaxStopBytes));
  }
  StopMatcher matcher;
  for (size_t i = 0; i < stops.size(); ++i) matcher.Insert(stops[i], static_cast<int32_t>(i));
  matcher.LinkFailures();
  return matcher;
}

StopMatcher::Found StopMatcher::Feed(std::string_view piece, bool armed) {
  Found found;
  held_ += piece;
  size_t n_fed = held_.size() - piece.size();
  for (const char c : piece) {
    state_ = Next(state_, static_cast<uint8_t>(c));
    ++n_fed;
    const int32_t match = nodes_[state_].match;
    if (!armed || match < 0) continue;
    found.match = match;
    found.released = held_.substr(0, n_fed - stop_bytes_[static_cast<size_t>(match)]);
    held_.clear();
    return found;
  }
  // A whole string that was let pass begins no longer one: only its own end may.
  while (nodes_[state_].first_child == 0 && state_ != 0) state_ = nodes_[state_].fail;
  const size_t n_released = held_.size() - nodes_[state_].depth;
  found.released = held_.substr(0, n_released);
  held_.erase(0, n_released);
  return found;
}

std::string StopMatcher::Flush() {
  state_ = 0;
  return std::exchange(held_, {});
}

uint32_t StopMatcher::ChildOrRoot(uint32_t node, uint8_t byte) const {
  uint32_t child = nodes_[node].first_child;
  while (child != 0 && nodes_[child].byte != byte) child = nodes_[child].next_sibling;
  return child;
}

uint32_t StopMatcher::Next(uint32_t node, uint8_t byte) const {
  for (;;) {
    const uint32_t child = ChildOrRoot(node, byte);
    if (child != 0 || node == 0) return child;
    node = nodes_[node].fail;
  }
}

void StopMatcher::Insert(std::string_view stop, int32_t index) {
  uint32_t node = 0;
  for (const char c : stop) {
    const auto byte = static_cast<uint8_t>(c);
    uint32_t child = ChildOrRoot(node, byte);
    if (child == 0) {
      child = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back({.next_sibling = nodes_[node].first_child, .depth = nodes_[node].depth + 1, .byte = byte});
      nodes_[node].first_child = child;
    }
    node = child;
  }
  if (nodes_[node].match < 0) nodes_[node].match = index;
  stop_bytes_.push_back(static_cast<uint32_t>(stop.size()));
}

// Breadth first: the failure of a node is shallower, so it is known already.
void StopMatcher::LinkFailures() {
  std::vector<uint32_t> order{0};
  for (size_t i = 0; i < order.size(); ++i) {
    const uint32_t node = order[i];
    for (uint32_t child = nodes_[node].first_child; child != 0; child = nodes_[child].next_sibling) {
      if (node != 0) nodes_[child].fail = Next(nodes_[node].fail, nodes_[child].byte);
      if (nodes_[child].match < 0) nodes_[child].match = nodes_[nodes_[child].fail].match;
      order.push_back(child);
    }
  }
}

}  // namespace df
