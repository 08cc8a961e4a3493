#include "text/control_text.h"

#include <algorithm>
#include <set>

#include "base/json.h"

namespace df {
namespace {

// Strings by which templates decide what to do; they are the API's words, not the user's.
constexpr std::array<std::string_view, 14> kRoles = {"system",    "developer", "user",        "assistant",  "tool",
                                                     "function",  "ipython",   "model",       "context",    "document",
                                                     "documents", "critic",    "environment", "observation"};
constexpr std::array<std::string_view, 11> kMemberNames = {
    "role", "content", "name", "type", "text", "id", "tool_calls", "function", "arguments", "parameters", "tool"};

template <size_t n>
bool Contains(const std::array<std::string_view, n>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool IsAsciiWord(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}
bool IsAsciiSign(char c) { return c > ' ' && c < 0x7F && !IsAsciiWord(c); }
bool IsIdentifier(std::string_view text) { return std::all_of(text.begin(), text.end(), IsAsciiWord); }

size_t FirstCharacterBytes(std::string_view text) {
  size_t n = 1;
  while (n < text.size() && (static_cast<uint8_t>(text[n]) & 0xC0) == 0x80) ++n;
  return n;
}

}  // namespace

ControlText::ControlText(const std::vector<AddedToken>& tokens) {
  for (const AddedToken& token : tokens) (token.special ? controls_ : harmless_).push_back(token.text);
  for (const std::string& control : controls_) {
    const std::string_view text = control;
    controls_by_first_byte_[static_cast<uint8_t>(text[0])].push_back(text);
    for (size_t n = 1; n < text.size(); ++n) {
      starts_.insert(text.substr(0, n));
      ends_.insert(text.substr(n));
    }
    all_.append(text).push_back('\0');
    longest_bytes_ = std::max(longest_bytes_, text.size());
    has_one_character_control_ = has_one_character_control_ || FirstCharacterBytes(text) == text.size();
  }
}

bool ControlText::StartsControl(std::string_view rest) const {
  const auto& candidates = controls_by_first_byte_[static_cast<uint8_t>(rest[0])];
  return std::any_of(candidates.begin(), candidates.end(), [&](std::string_view c) { return rest.starts_with(c); });
}

// "<think>", "</tool_call>", "<b>" and the like: templates look for them in contents.
bool ControlText::StartsHarmlessTag(std::string_view rest) const {
  const auto starts_rest = [&](const std::string& tag) { return rest.starts_with(tag); };
  if (std::any_of(harmless_.begin(), harmless_.end(), starts_rest)) return true;
  constexpr size_t kMaxTagBytes = 40;
  const size_t name = rest.starts_with("</") ? 2 : 1;
  size_t end = name;
  while (end < rest.size() && end < kMaxTagBytes && IsAsciiWord(rest[end])) ++end;
  return rest[0] == '<' && end > name && end < rest.size() && rest[end] == '>';
}

void ControlText::BreakInside(std::string_view text, std::set<size_t>& breaks) const {
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string_view rest = text.substr(i);
    if (controls_by_first_byte_[static_cast<uint8_t>(rest[0])].empty()) continue;
    const size_t n = FirstCharacterBytes(rest);
    if (StartsControl(rest)) {
      breaks.insert(i + n);
      // A control token of one character has no inside: it is broken when both its sides are.
      if (has_one_character_control_) breaks.insert(i);
    } else if (IsAsciiSign(rest[0]) && !StartsHarmlessTag(rest)) {
      // A template may take something out of the text, so that what follows completes a control token.
      breaks.insert(i + n);
    }
  }
}

// `text` and what a template puts beside it may read as a control token when `text` ends as one begins, begins as one
// ends, or is a part of one.
void ControlText::BreakAtEdges(std::string_view text, std::set<size_t>& breaks) const {
  const size_t longest = std::min(text.size(), longest_bytes_);
  for (size_t n = 1; n <= longest; ++n) {
    const std::string_view end = text.substr(text.size() - n);
    if (starts_.contains(end)) breaks.insert(text.size() - n + FirstCharacterBytes(end));
    // A single sign such as ">" ends too many tokens and begins too many texts, and no template writes all but it.
    if (n >= 2 && ends_.contains(text.substr(0, n))) breaks.insert(0);
  }
  if (!text.empty() && text.size() < longest_bytes_ && all_.find(text) != std::string::npos) breaks.insert(0);
}

std::string ControlText::Marked(std::string_view text, std::string_view mark, StringKind kind) const {
  std::set<size_t> breaks;
  BreakInside(text, breaks);
  if (kind == StringKind::kText || !IsIdentifier(text)) BreakAtEdges(text, breaks);
  std::string marked;
  size_t done = 0;
  for (const size_t at : breaks) {
    marked.append(text.substr(done, at - done)).append(mark);
    done = at;
  }
  return marked.append(text.substr(done));
}

void ControlText::Mark(Json& value, const std::string& mark) const {
  if (controls_.empty()) return;
  if (value.is_string()) {
    auto& text = value.get_ref<std::string&>();
    text = Marked(text, mark, StringKind::kText);
  } else if (value.is_array()) {
    for (Json& item : value) Mark(item, mark);
  } else if (value.is_object()) {
    for (auto& [name, member] : value.items()) MarkMember(name, member, mark);
    MarkNames(value, mark);
  }
}

void ControlText::MarkMember(const std::string& name, Json& member, const std::string& mark) const {
  if (!member.is_string()) return Mark(member, mark);
  auto& text = member.get_ref<std::string&>();
  if (name == "role" && Contains(kRoles, text)) return;
  text = Marked(text, mark, name == "type" ? StringKind::kWord : StringKind::kText);
}

void ControlText::MarkNames(Json& object, const std::string& mark) const {
  Json renamed = Json::object();
  for (auto& [name, value] : object.items()) {
    const std::string marked = Contains(kMemberNames, name) ? name : Marked(name, mark, StringKind::kWord);
    // Names were unique and stay so: taking the marks out gives them back.
    renamed.get_ref<Json::object_t&>().Container::emplace_back(marked, std::move(value));
  }
  object = std::move(renamed);
}

void ControlText::MarkVariables(Json& variables, const std::string& mark) const {
  if (controls_.empty() || !variables.is_object()) return;
  for (auto& [name, value] : variables.items()) {
    if (value.is_string()) {
      auto& text = value.get_ref<std::string&>();
      text = Marked(text, mark, StringKind::kWord);
    } else {
      Mark(value, mark);
    }
  }
}

UnmarkedText RemoveMarks(std::string_view marked, std::string_view mark) {
  UnmarkedText result;
  for (size_t from = 0;;) {
    const size_t at = marked.find(mark, from);
    if (at == std::string_view::npos) {
      result.text.append(marked.substr(from));
      return result;
    }
    result.text.append(marked.substr(from, at - from));
    if (result.broken_at.empty() || result.broken_at.back() != result.text.size()) {
      result.broken_at.push_back(result.text.size());
    }
    from = at + mark.size();
  }
}

}  // namespace df
