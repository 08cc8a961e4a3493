// Who may change what is served: the holder of the admin key; where there is none, of an API key; where there is none
// either, this machine. A page in somebody's browser may not, whatever name it gives to our address.
#ifndef DELTAFOLD_SERVER_ADMIN_ACCESS_H_
#define DELTAFOLD_SERVER_ADMIN_ACCESS_H_

#include <optional>
#include <string>
#include <vector>

#include "server/error_map.h"
#include "server/http_message.h"

namespace df::server {

struct AccessKeys {
  std::vector<std::string> api;
  std::vector<std::string> admin;
};

// Whether `request` may use what every user may: any key of either kind, or there are no API keys.
bool IsUser(const AccessKeys& keys, const HttpRequest& request);

struct AdminPolicy {
  const AccessKeys& keys;
  const std::vector<std::string>& allowed_hosts;  // names this server is called by, besides addresses and localhost
  bool peer_is_loopback = false;
};

// Absent: it may. 401 for a wrong key; 403 without any key from elsewhere, for a Host that is neither an address,
// localhost nor allowed (a name that somebody else has pointed at us), and for an Origin that is not that Host.
std::optional<ApiError> RefuseAdmin(const AdminPolicy& policy, const HttpRequest& request);

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_ADMIN_ACCESS_H_
