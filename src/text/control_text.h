// Which strings of a request could become control tokens, and how they are kept from it. Private to text/.
//
// A special token's text must not arise from a request's strings, not even together with what a template puts around
// them or after a template has taken a part out of them. A mark (a private-use character) inside the text keeps the
// tokenizer from accepting it; marks that turn out to be needless cost nothing, they are removed after rendering.
#ifndef DELTAFOLD_TEXT_CONTROL_TEXT_H_
#define DELTAFOLD_TEXT_CONTROL_TEXT_H_

#include <array>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/json_fwd.h"
#include "text/tokenizer.h"

namespace df {

// Immutable and thread-safe. Built once per tokenizer.
class ControlText {
 public:
  explicit ControlText(const std::vector<AddedToken>& tokens);

  // Marks every string in `value` (object keys included) that needs it.
  void Mark(Json& value, const std::string& mark) const;
  // The same for the variables of a request: words among them are switches that templates compare.
  void MarkVariables(Json& variables, const std::string& mark) const;

 private:
  enum class StringKind { kText, kWord };
  std::string Marked(std::string_view text, std::string_view mark, StringKind kind) const;
  bool StartsControl(std::string_view rest) const;
  bool StartsHarmlessTag(std::string_view rest) const;
  void BreakInside(std::string_view text, std::set<size_t>& breaks) const;
  void BreakAtEdges(std::string_view text, std::set<size_t>& breaks) const;
  void MarkMember(const std::string& name, Json& member, const std::string& mark) const;
  void MarkNames(Json& object, const std::string& mark) const;

  std::vector<std::string> controls_;
  std::vector<std::string> harmless_;  // added tokens that are not special
  std::array<std::vector<std::string_view>, 256> controls_by_first_byte_;
  std::unordered_set<std::string_view> starts_;  // proper prefixes of controls
  std::unordered_set<std::string_view> ends_;    // proper suffixes
  std::string all_;                              // controls, separated by NUL
  size_t longest_bytes_ = 0;
  bool has_one_character_control_ = false;
};

struct UnmarkedText {
  std::string text;
  std::vector<size_t> broken_at;  // where marks stood, as offsets into text
};
UnmarkedText RemoveMarks(std::string_view marked, std::string_view mark);

}  // namespace df

#endif  // DELTAFOLD_TEXT_CONTROL_TEXT_H_
