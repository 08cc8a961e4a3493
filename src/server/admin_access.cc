#include "server/admin_access.h"

#include <arpa/inet.h>

#include <algorithm>

#include "server/auth.h"

namespace df::server {
namespace {

ApiError Forbidden(std::string message, std::string code) {
  return {
      .status = 403, .type = "permission_error", .message = std::move(message), .param = "", .code = std::move(code)};
}

std::string Lowered(std::string_view text) {
  std::string lowered(text);
  for (char& c : lowered) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return lowered;
}

// "name:80" -> "name", "[::1]:80" -> "::1"; "" for what is neither.
std::string_view WithoutPort(std::string_view authority) {
  if (!authority.starts_with('[')) return authority.substr(0, authority.find(':'));
  const size_t end = authority.find(']');
  if (end == std::string_view::npos) return "";
  const std::string_view rest = authority.substr(end + 1);
  return rest.empty() || rest.starts_with(':') ? authority.substr(1, end - 1) : "";
}

bool IsAddress(const std::string& host) {
  in_addr v4{};
  in6_addr v6{};
  return inet_pton(AF_INET, host.c_str(), &v4) == 1 || inet_pton(AF_INET6, host.c_str(), &v6) == 1;
}

// An address cannot be pointed elsewhere by whoever runs a name server; names can.
bool IsOwnHost(std::string_view authority, const std::vector<std::string>& allowed) {
  const std::string host = Lowered(WithoutPort(authority));
  if (IsAddress(host) || host == "localhost") return true;
  return std::any_of(allowed.begin(), allowed.end(), [&](const std::string& name) { return Lowered(name) == host; });
}

bool IsSameOrigin(std::string_view origin, std::string_view host) {
  const std::string lowered = Lowered(origin), authority = Lowered(host);
  return lowered == "http://" + authority || lowered == "https://" + authority;
}

}  // namespace

bool IsUser(const AccessKeys& keys, const HttpRequest& request) {
  if (keys.api.empty()) return true;
  const bool is_user = IsAuthorized(keys.api, request.authorization);
  const bool is_admin = !keys.admin.empty() && IsAuthorized(keys.admin, request.authorization);
  return is_user || is_admin;
}

std::optional<ApiError> RefuseAdmin(const AdminPolicy& policy, const HttpRequest& request) {
  const std::vector<std::string>& keys = policy.keys.admin.empty() ? policy.keys.api : policy.keys.admin;
  if (!keys.empty() && !IsAuthorized(keys, request.authorization)) return InvalidApiKey();
  if (keys.empty() && (!policy.peer_is_loopback || request.forwarded)) {
    return Forbidden("Without a key this route answers its own machine only: start the server with --admin-api-key",
                     "admin_key_required");
  }
  if (!request.host.empty() && !IsOwnHost(request.host, policy.allowed_hosts)) {
    return Forbidden("This route is called by address, by localhost or by a name given with --allowed-hosts",
                     "foreign_host");
  }
  if (!request.origin.empty() && !IsSameOrigin(request.origin, request.host)) {
    return Forbidden("This route takes no requests from pages of another origin", "foreign_origin");
  }
  return std::nullopt;
}

}  // namespace df::server
