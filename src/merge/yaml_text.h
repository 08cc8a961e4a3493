// YAML from untrusted bytes as a tree with line numbers: one document, bounded in size, depth, nodes and aliases (an
// alias is a copy, and what it copies counts), no duplicate keys, keys are text. What a scalar means is the reader's.
#ifndef DELTAFOLD_MERGE_YAML_TEXT_H_
#define DELTAFOLD_MERGE_YAML_TEXT_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace df::merge {

struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };
  Kind kind = Kind::kNull;
  size_t line = 1;                                             // from 1
  std::string scalar;                                          // of kScalar
  bool is_quoted = false;                                      // a quoted scalar is text whatever it looks like
  std::vector<YamlNode> items = {};                            // of kSequence
  std::vector<std::pair<std::string, YamlNode>> members = {};  // of kMap, in the order of the text

  const YamlNode* MemberOrNull(std::string_view key) const;
};

// "a number", "a list", ...: what was found, for messages.
std::string Describe(const YamlNode& node);

// "line 7: "; nothing for line 0.
std::string AtLine(size_t line);

struct YamlLimits {
  size_t max_bytes = size_t{1} << 20;
  size_t max_depth = 16;
  size_t max_nodes = 20'000;
};

// The only errors are kCorrupt (not YAML, more than one document, a duplicate key; the message has the line) and
// kResourceExhausted (too large, too deep, too many nodes).
Result<YamlNode> ParseYaml(std::string_view text, YamlLimits limits = {});

// The readers of scalars, by YAML's core schema. Quoted text is neither number nor flag. NaN and infinities are no
// numbers.
bool ReadNumber(const YamlNode& node, double& value);
bool ReadFlag(const YamlNode& node, bool& value);

}  // namespace df::merge

#endif  // DELTAFOLD_MERGE_YAML_TEXT_H_
