// Any bytes as pool.json: what is accepted is written and read back as it is.
#include "base/bytes.h"
#include "base/check.h"
#include "base/json.h"
#include "format/digest.h"
#include "merge/pool_state.h"

namespace {

void Try(std::string_view text) {
  const auto state = df::ParsePoolState(text);
  if (!state.ok()) return;
  const auto again = df::ParsePoolState(df::DumpPoolState(*state));
  DF_CHECK(again.ok() && *again == *state);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = df::AsText({data, size});
  Try(text);
  // The same with a digest that fits, or nothing behind it would ever be looked at.
  auto json = df::ParseJson(text);
  if (!json.ok() || !json->is_object() || !json->contains("state")) return 0;
  df::Digest digest;
  digest.AddText(df::DumpJson((*json)["state"]));
  (*json)["digest"] = digest.Hex();
  Try(df::DumpJson(*json));
  return 0;
}
