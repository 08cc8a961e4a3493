#include "merge/yaml_text.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <exception>
#include <istream>
#include <map>
#include <streambuf>

#include "base/utf8.h"

namespace df::merge {
namespace {

size_t LineOf(const YAML::Mark& mark) { return static_cast<size_t>(std::max(mark.line, 0)) + 1; }

// Thrown through the parser, which knows no other way to be stopped, and caught in ParseYaml.
struct Stop {
  Status status;
};

size_t CountNodes(const YamlNode& node) {
  size_t n = 1;
  for (const YamlNode& item : node.items) n += CountNodes(item);
  for (const auto& [key, value] : node.members) n += CountNodes(value);
  return n;
}

size_t DepthOf(const YamlNode& node) {
  size_t depth = 0;
  for (const YamlNode& item : node.items) depth = std::max(depth, DepthOf(item));
  for (const auto& [key, value] : node.members) depth = std::max(depth, DepthOf(value));
  return depth + 1;
}

class TreeBuilder final : public YAML::EventHandler {
 public:
  explicit TreeBuilder(const YamlLimits& limits) : limits_(limits) {}

  YamlNode TakeRoot() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& /*mark*/) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Leaf({.line = LineOf(mark), .scalar = ""}, anchor);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    const size_t line = LineOf(mark);
    if (tag != "?" && tag != "!" && !tag.empty()) {
      throw Stop{Corrupt(AtLine(line) + "the tag " + tag.substr(0, 80) + " has no meaning here")};
    }
    const bool is_quoted = tag == "!";  // the library's word for it
    if (!is_quoted && (value == "~" || value == "null" || value == "Null" || value == "NULL" || value.empty())) {
      Leaf({.line = line, .scalar = ""}, anchor);
    } else {
      Leaf({.kind = YamlNode::Kind::kScalar, .line = line, .scalar = value, .is_quoted = is_quoted}, anchor);
    }
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value /*style*/) override {
    Open({.kind = YamlNode::Kind::kSequence, .line = LineOf(mark), .scalar = ""}, anchor);
  }
  void OnSequenceEnd() override { Close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& /*tag*/, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value /*style*/) override {
    Open({.kind = YamlNode::Kind::kMap, .line = LineOf(mark), .scalar = ""}, anchor);
  }
  void OnMapEnd() override { Close(); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    const size_t line = LineOf(mark);
    if (found == anchors_.end()) throw Stop{Corrupt(AtLine(line) + "an alias stands inside what it names")};
    if (open_.size() + DepthOf(found->second) > limits_.max_depth) TooDeep(line);
    CountNew(CountNodes(found->second), line);
    YamlNode copy = found->second;
    copy.line = line;
    Put(std::move(copy));
  }

 private:
  struct Level {
    YamlNode node;
    YAML::anchor_t anchor = 0;
    bool has_key = false;
    std::string key = {};
  };

  [[noreturn]] void TooDeep(size_t line) const {
    throw Stop{ResourceExhausted(AtLine(line) + "nested more than " + std::to_string(limits_.max_depth) + " deep")};
  }

  void CountNew(size_t n, size_t line) {
    n_nodes_ += n;
    if (n_nodes_ <= limits_.max_nodes) return;
    throw Stop{ResourceExhausted(AtLine(line) + "more than " + std::to_string(limits_.max_nodes) +
                                 " values, with what aliases repeat")};
  }

  void Leaf(YamlNode node, YAML::anchor_t anchor) {
    CountNew(1, node.line);
    if (anchor != 0) anchors_[anchor] = node;
    Put(std::move(node));
  }

  void Open(YamlNode node, YAML::anchor_t anchor) {
    CountNew(1, node.line);
    if (open_.size() + 1 > limits_.max_depth) TooDeep(node.line);
    open_.push_back({.node = std::move(node), .anchor = anchor});
  }

  void Close() {
    Level level = std::move(open_.back());
    open_.pop_back();
    if (level.anchor != 0) anchors_[level.anchor] = level.node;
    Put(std::move(level.node));
  }

  void Put(YamlNode node) {
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Level& level = open_.back();
    if (level.node.kind == YamlNode::Kind::kSequence) {
      level.node.items.push_back(std::move(node));
    } else if (!level.has_key) {
      TakeKey(level, node);
    } else {
      level.node.members.emplace_back(std::move(level.key), std::move(node));
      level.has_key = false;
    }
  }

  static void TakeKey(Level& level, const YamlNode& node) {
    if (node.kind != YamlNode::Kind::kScalar) {
      throw Stop{Corrupt(AtLine(node.line) + "a key is expected to be text, got " + Describe(node))};
    }
    if (level.node.MemberOrNull(node.scalar) != nullptr) {
      throw Stop{Corrupt(AtLine(node.line) + "the key \"" + node.scalar.substr(0, 80) + "\" is given twice")};
    }
    level.key = node.scalar;
    level.has_key = true;
  }

  const YamlLimits& limits_;
  std::vector<Level> open_;
  std::map<YAML::anchor_t, YamlNode> anchors_;
  YamlNode root_;
  size_t n_nodes_ = 0;
};

// A stream over bytes that are not copied.
class TextBuffer final : public std::streambuf {
 public:
  explicit TextBuffer(std::string_view text) {
    char* const begin = const_cast<char*>(text.data());  // read only: the get area is all there is
    setg(begin, begin, begin + text.size());
  }
};

// Characters that no recipe has and that parsers stumble over.
Status CheckCharacters(std::string_view text) {
  if (!IsValidUtf8(text)) return Corrupt("it is not valid UTF-8");
  size_t line = 1;
  for (const char c : text) {
    if (c == '\n') ++line;
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 && c != '\n' && c != '\r' && c != '\t') {
      return Corrupt(AtLine(line) + "a control character (" + std::to_string(byte) + ")");
    }
  }
  return Status::Ok();
}

// The one place where exceptions are met.
Result<YamlNode> ParseGuarded(std::string_view text, const YamlLimits& limits) {
  TreeBuilder builder(limits);
  try {
    TextBuffer buffer(text);
    std::istream stream(&buffer);
    YAML::Parser parser(stream);
    if (!parser.HandleNextDocument(builder)) return Corrupt("it is empty");
    YamlNode root = builder.TakeRoot();
    if (parser.HandleNextDocument(builder)) return Corrupt("it has more than one document");
    return root;
  } catch (const Stop& stop) {
    return stop.status;
  } catch (const YAML::Exception& error) {
    return Corrupt(AtLine(LineOf(error.mark)) + error.msg.substr(0, 200));
  } catch (const std::exception& error) {
    return Corrupt(std::string("the parser gave up: ") + error.what());
  }
}

}  // namespace

std::string AtLine(size_t line) { return line == 0 ? "" : "line " + std::to_string(line) + ": "; }

const YamlNode* YamlNode::MemberOrNull(std::string_view key) const {
  const auto found =
      std::ranges::find(members, key, [](const auto& member) -> std::string_view { return member.first; });
  return found == members.end() ? nullptr : &found->second;
}

std::string Describe(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull: return "nothing";
    case YamlNode::Kind::kScalar: return "\"" + node.scalar.substr(0, 80) + "\"";
    case YamlNode::Kind::kSequence: return "a list of " + std::to_string(node.items.size());
    case YamlNode::Kind::kMap: break;
  }
  return "keys with values";
}

Result<YamlNode> ParseYaml(std::string_view text, YamlLimits limits) {
  if (text.size() > limits.max_bytes) {
    return ResourceExhausted("it has " + std::to_string(text.size()) + " bytes, at most " +
                             std::to_string(limits.max_bytes) + " are accepted");
  }
  DF_RETURN_IF_ERROR(CheckCharacters(text));
  return ParseGuarded(text, limits);
}

bool ReadNumber(const YamlNode& node, double& value) {
  if (node.kind != YamlNode::Kind::kScalar || node.is_quoted || node.scalar.empty()) return false;
  const char* begin = node.scalar.data();
  const char* const end = begin + node.scalar.size();
  if (*begin == '+') ++begin;
  if (begin == end || !(*begin == '-' || *begin == '.' || (*begin >= '0' && *begin <= '9'))) return false;
  const auto [stopped, error] = std::from_chars(begin, end, value);
  return error == std::errc() && stopped == end && std::isfinite(value);
}

bool ReadFlag(const YamlNode& node, bool& value) {
  if (node.kind != YamlNode::Kind::kScalar || node.is_quoted) return false;
  const std::string& text = node.scalar;
  if (text == "true" || text == "True" || text == "TRUE") {
    value = true;
    return true;
  }
  if (text == "false" || text == "False" || text == "FALSE") {
    value = false;
    return true;
  }
  return false;
}

}  // namespace df::merge
