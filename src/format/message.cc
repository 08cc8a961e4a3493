#include "format/message.h"

#include "base/json.h"
#include "base/utf8.h"

namespace df {

std::string Quoted(std::string_view name) {
  constexpr size_t kMaxShown = 120;  // a module path of a real model is shorter
  if (name.size() <= kMaxShown) return DumpJson(Json(std::string(name)));
  const std::string_view shown = name.substr(0, CompleteUtf8Prefix(name.substr(0, kMaxShown)));
  return DumpJson(Json(std::string(shown))) + "... (" + std::to_string(name.size()) + " bytes)";
}

}  // namespace df
