// For tests: a blocking TCP client that sends exactly the bytes it is given.
#ifndef DELTAFOLD_SERVER_RAW_CLIENT_H_
#define DELTAFOLD_SERVER_RAW_CLIENT_H_

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>

namespace df::server {

class RawClient {
 public:
  explicit RawClient(uint16_t port, int receive_buffer_bytes = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer_bytes > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
    }
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  }
  ~RawClient() { Close(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool connected() const { return connected_; }
  bool Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n_sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n_sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(n_sent));
    }
    return true;
  }
  // The end of what the client says; it still listens.
  void EndSending() { shutdown(fd_, SHUT_WR); }
  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  // What is waited for comes at once on an idle machine; a busy one takes what it takes.
  static constexpr int kPatienceMs = 60'000;

  // Until the server closes or `ms` have passed.
  std::string ReadAll(int ms = kPatienceMs) {
    while (!closed_ && Receive(ms)) {
    }
    return std::exchange(received_, {});
  }
  // Until `part` has arrived; everything up to and with it. "" when it does not come within `ms`.
  std::string ReadUntil(std::string_view part, int ms = kPatienceMs) {
    size_t at = received_.find(part);
    while (at == std::string::npos && !closed_ && Receive(ms)) at = received_.find(part);
    if (at == std::string::npos) return "";
    std::string taken = received_.substr(0, at + part.size());
    received_.erase(0, at + part.size());
    return taken;
  }
  // One response with Content-Length: head and body.
  std::string ReadResponse(int ms = kPatienceMs) {
    std::string response = ReadUntil("\r\n\r\n", ms);
    constexpr std::string_view kLength = "Content-Length: ";
    const size_t at = response.find(kLength);
    if (at == std::string::npos) return response;
    const auto length = static_cast<size_t>(std::atol(response.c_str() + at + kLength.size()));
    while (received_.size() < length && !closed_ && Receive(ms)) {
    }
    response += received_.substr(0, length);
    received_.erase(0, length);
    return response;
  }
  // Whether the server closes within `ms`.
  bool WaitClosed(int ms = kPatienceMs) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
    while (!closed_ && std::chrono::steady_clock::now() < end) Receive(50);
    return closed_;
  }

 private:
  bool Receive(int ms) {
    pollfd waiting{.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, ms) <= 0) return false;
    char buffer[16384];
    const ssize_t n_received = recv(fd_, buffer, sizeof(buffer), 0);
    if (n_received <= 0) {
      closed_ = true;
      return false;
    }
    received_.append(buffer, static_cast<size_t>(n_received));
    return true;
  }

  int fd_ = -1;
  bool connected_ = false, closed_ = false;
  std::string received_;
};

}  // namespace df::server

#endif  // DELTAFOLD_SERVER_RAW_CLIENT_H_
