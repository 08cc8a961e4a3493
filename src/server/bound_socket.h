// An address that is taken and not listened on yet, so that a taken port is found out before a model is loaded.
#ifndef DELTAFOLD_SERVER_BOUND_SOCKET_H_
#define DELTAFOLD_SERVER_BOUND_SOCKET_H_

#include <cstdint>
#include <string>
#include <utility>

#include "base/status.h"

namespace df::server {

// Owns the descriptor. Until a Server listens on it connections are refused.
class BoundSocket {
 public:
  // `port` 0 = any free one. The only errors are kInvalidArgument (host is no address) and kIo (somebody listens there
  // already, or it is not an address of this machine). Two that both are not listened on yet may hold one port: then
  // the second to listen is refused.
  static Result<BoundSocket> Bind(const std::string& host, uint16_t port);
  BoundSocket(BoundSocket&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), is_v6_(other.is_v6_), port_(other.port_) {}
  BoundSocket& operator=(BoundSocket&&) = delete;
  ~BoundSocket();

  bool is_v6() const { return is_v6_; }
  uint16_t port() const { return port_; }
  // The descriptor becomes the caller's.
  int Release() { return std::exchange(descriptor_, -1); }

 private:
  BoundSocket(int descriptor, bool is_v6, uint16_t port) : descriptor_(descriptor), is_v6_(is_v6), port_(port) {}

  int descriptor_;
  bool is_v6_;
  uint16_t port_;
};

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_BOUND_SOCKET_H_
