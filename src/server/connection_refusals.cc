// What a connection refuses by the header alone: who calls, which route, when.
#include "server/admin_access.h"
#include "server/connection.h"

namespace df::server {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

// Whether the connection comes from this machine.
bool IsLoopback(const asio::ip::tcp::socket& socket) {
  error_code error;
  const asio::ip::address address = socket.remote_endpoint(error).address();
  if (error) return false;
  if (address.is_v6() && address.to_v6().is_v4_mapped()) {
    return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).is_loopback();
  }
  return address.is_loopback();
}

}  // namespace

std::optional<ApiError> Connection::RefusalOfCaller(const RouteMatch& match) const {
  const ServerOptions& options = state_.options;
  if (match.access == Access::kAdmin) {
    return RefuseAdmin(
        {.keys = options.keys, .allowed_hosts = options.allowed_hosts, .peer_is_loopback = IsLoopback(socket_)},
        request_);
  }
  if (match.access == Access::kKey && !IsUser(options.keys, request_)) return InvalidApiKey();
  return std::nullopt;
}

std::optional<HttpResponse> Connection::RefusalBeforeBody(const RouteMatch& match) const {
  if (const std::optional<ApiError> refusal = RefusalOfCaller(match)) return ErrorResponse(*refusal);
  if (!match.known_path) return ErrorResponse(RouteNotFound());
  if (!match.method_allowed) {
    ApiError error = TransportError(405, "this route takes " + std::string(match.allow));
    error.code = "method_not_allowed";
    HttpResponse response = ErrorResponse(error);
    response.headers.emplace_back("Allow", match.allow);
    return response;
  }
  if (options_.probes_only && !match.is_probe) return ErrorResponse(TransportError(503, "too many connections"));
  const std::optional<VariantRoot>& root = state_.options.variant_root;
  if (const auto off = RefuseWhileOff(match.route, root ? &*root : nullptr)) return ErrorResponse(*off);
  const bool begins_work = IsGeneration(match.route) || IsAdmin(match.route);
  if (begins_work && state_.draining) return ErrorResponse(ShuttingDown());
  return std::nullopt;
}

}  // namespace df::server
