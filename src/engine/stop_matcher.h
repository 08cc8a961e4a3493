// Finds stop strings in a text that arrives in pieces (Aho and Corasick 1975: one pass over the text, whatever the
// number of strings), and says how much of the text may be shown already.
#ifndef DELTAFOLD_ENGINE_STOP_MATCHER_H_
#define DELTAFOLD_ENGINE_STOP_MATCHER_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace df {

// The match is the one that is complete first; of those complete at once, the longest. It does not depend on how the
// text was cut into pieces. Text is held back exactly while it is the beginning of some stop string: as strings and
// pieces are complete UTF-8, so is what is released. Thread-compatible.
class StopMatcher {
 public:
  // kInvalidArgument for an empty string, or more than kMaxStopBytes bytes together.
  static Result<StopMatcher> Create(const std::vector<std::string>& stops);

  struct Found {
    std::string released;  // may be shown now: all of the text up to what is held back, or up to the match
    int32_t match = -1;    // index into `stops`; nothing more is to be fed then
  };
  // Appends `piece`. While not `armed`, strings that are complete are let pass.
  Found Feed(std::string_view piece, bool armed);
  // The end of the text: what was held back.
  std::string Flush();

 private:
  // A prefix of a stop string. Children are a linked list: at most 256, and most nodes have one.
  struct Node {
    uint32_t first_child = 0;  // 0 = none: the root is nobody's child
    uint32_t next_sibling = 0;
    uint32_t fail = 0;   // the longest proper suffix that is a prefix too
    uint32_t depth = 0;  // bytes
    int32_t match = -1;  // the longest stop string that ends here
    uint8_t byte = 0;
  };

  StopMatcher() : nodes_(1) {}
  uint32_t ChildOrRoot(uint32_t node, uint8_t byte) const;
  uint32_t Next(uint32_t node, uint8_t byte) const;
  void Insert(std::string_view stop, int32_t index);
  void LinkFailures();

  std::vector<Node> nodes_;
  std::vector<uint32_t> stop_bytes_;  // length of each stop string
  uint32_t state_ = 0;
  std::string held_;  // the text behind state_: nodes_[state_].depth bytes
};

}  // namespace df

#endif  // DELTAFOLD_ENGINE_STOP_MATCHER_H_
