// The name of the JSON value for headers that only pass it on: its definition (json.h) costs seconds a translation
// unit.
#ifndef DELTAFOLD_BASE_JSON_FWD_H_
#define DELTAFOLD_BASE_JSON_FWD_H_

#include <nlohmann/json_fwd.hpp>

namespace df {

// Keys keep file order: PEFT's pattern dictionaries are matched first key first.
using Json = nlohmann::ordered_json;

}  // namespace df

#endif  // DELTAFOLD_BASE_JSON_FWD_H_
