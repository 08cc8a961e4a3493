// GET /v1/variants for people.
#ifndef DELTAFOLD_CLI_VARIANTS_VIEW_H_
#define DELTAFOLD_CLI_VARIANTS_VIEW_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "base/json_fwd.h"
#include "base/status.h"

namespace df::cli {

// The table, with totals and the causes of failed loads below. The only error is kCorrupt: no such list.
Result<std::string> VariantsTable(const Json& list, int64_t now_unix);

// A row in one line: "sql: resident, pinned, 61.4 MB in memory". The only error is kCorrupt.
Result<std::string> VariantLine(const Json& row);

// `text` over what stands on the terminal, from its upper left corner, what is below erased.
std::string InPlace(std::string_view text);

}  // namespace df::cli

#endif  // DELTAFOLD_CLI_VARIANTS_VIEW_H_
