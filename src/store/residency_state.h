// The states of a generation, as operators see them.
#ifndef DELTAFOLD_STORE_RESIDENCY_STATE_H_
#define DELTAFOLD_STORE_RESIDENCY_STATE_H_

#include <string_view>

namespace df {

enum class ResidencyState { kRegistered, kLoading, kResident, kFailed };
std::string_view ResidencyStateName(ResidencyState state);  // "registered", "loading", "resident", "failed"

}  // namespace df

#endif  // DELTAFOLD_STORE_RESIDENCY_STATE_H_
