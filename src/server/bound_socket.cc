#include "server/bound_socket.h"

#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

namespace df::server {

Result<BoundSocket> BoundSocket::Bind(const std::string& host, uint16_t port) {
  using boost::asio::ip::tcp;
  boost::system::error_code error;
  boost::asio::io_context io;
  tcp::resolver resolver(io);
  const auto flags = tcp::resolver::passive | tcp::resolver::numeric_service;
  const auto found = resolver.resolve(host, std::to_string(port), flags, error);
  if (error || found.empty()) {
    return InvalidArgument("host \"" + host + "\" is no address of this machine: " + error.message());
  }
  const tcp::endpoint wanted = found.begin()->endpoint();
  tcp::acceptor acceptor(io);
  tcp::endpoint got;
  acceptor.open(wanted.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);  // connections of the last run may linger
  if (!error) acceptor.bind(wanted, error);
  if (!error) got = acceptor.local_endpoint(error);
  if (error) return IoError("cannot listen on " + host + ":" + std::to_string(port), error.value());
  const int descriptor = acceptor.release(error);
  if (error) return IoError("cannot listen on " + host + ":" + std::to_string(port), error.value());
  return BoundSocket(descriptor, got.protocol() == tcp::v6(), got.port());
}

BoundSocket::~BoundSocket() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace df::server
