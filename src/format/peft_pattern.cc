#include <re2/re2.h>

#include <algorithm>
#include <utility>

#include "format/message.h"
#include "format/peft_config.h"

namespace df {

Result<Pattern> Pattern::Compile(std::string_view text) {
  constexpr size_t kMaxPatternBytes = 1000;  // a list of all module names of one layer has 100
  if (text.size() > kMaxPatternBytes) {
    return InvalidArgument("pattern of " + std::to_string(text.size()) + " bytes, at most " +
                           std::to_string(kMaxPatternBytes) + " are accepted");
  }
  re2::RE2::Options options;
  options.set_log_errors(false);
  options.set_max_mem(int64_t{1} << 20);
  auto regex = std::make_unique<re2::RE2>(re2::StringPiece(text.data(), text.size()), options);
  if (!regex->ok()) {
    return Unsupported("pattern " + Quoted(text) + " is no regular expression that can be matched in linear time (" +
                       regex->error() + ")");
  }
  return Pattern(std::move(regex));
}

Pattern::Pattern(std::unique_ptr<re2::RE2> regex) : regex_(std::move(regex)) {}
Pattern::Pattern(Pattern&&) noexcept = default;
Pattern& Pattern::operator=(Pattern&&) noexcept = default;
Pattern::~Pattern() = default;

Pattern Pattern::AtEnd(std::string text) {
  Pattern pattern(nullptr);
  pattern.end_ = std::move(text);
  return pattern;
}

bool Pattern::MatchesWhole(std::string_view text) const {
  if (regex_ == nullptr) {
    if (text.size() < end_.size()) return false;
    const size_t from = text.size() - end_.size();
    const auto fits = [](char expected, char found) { return expected == found || (expected == '.' && found != '\n'); };
    return (from == 0 || text[from - 1] == '.') &&
           std::equal(end_.begin(), end_.end(), text.begin() + static_cast<std::ptrdiff_t>(from), fits);
  }
  return re2::RE2::FullMatch(re2::StringPiece(text.data(), text.size()), *regex_);
}

std::optional<int64_t> Pattern::NumberAtStart(std::string_view text) const {
  re2::StringPiece rest(text.data(), text.size());
  int64_t number = 0;
  if (!re2::RE2::Consume(&rest, *regex_, &number)) return std::nullopt;
  return number;
}

}  // namespace df
