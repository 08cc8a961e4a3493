// API keys: who may call /v1.
#ifndef DELTAFOLD_SERVER_AUTH_H_
#define DELTAFOLD_SERVER_AUTH_H_

#include <string>
#include <string_view>
#include <vector>

namespace df::server {

// Whether `authorization` is "Bearer " and one of `keys`; true for everybody when there are no keys. The time taken
// depends on the lengths alone, not on how much of a key is right or which one it is.
bool IsAuthorized(const std::vector<std::string>& keys, std::string_view authorization);

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_AUTH_H_
