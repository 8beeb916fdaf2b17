// SPDX-License-Identifier: Apache-2.0
#include "parallel/sockets.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/error.h"

namespace saturate::parallel {
namespace {

constexpr int kBacklog = 1024;

// A full socket buffer gives control back this often, so that `cancelled` is seen.
constexpr int kSendSliceMs = 200;

void prepare(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // frames are small and waited for
}

bool wait_for(int fd, short events, int timeout_ms) {
  pollfd p{fd, events, 0};
  int n;
  do n = poll(&p, 1, timeout_ms);
  while (n < 0 && errno == EINTR);
  return n > 0;
}

// A bound and listening socket, or an empty one with errno set.
Descriptor try_listen(int family, Reach reach, int port) {
  Descriptor s(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!s) return s;
  const int on = 1, off = 0;
  setsockopt(s.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_storage address{};
  socklen_t length;
  if (family == AF_INET6) {
    setsockopt(s.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    auto* a = reinterpret_cast<sockaddr_in6*>(&address);
    *a = {.sin6_family = AF_INET6,
          .sin6_port = htons(static_cast<uint16_t>(port)),
          .sin6_flowinfo = 0,
          .sin6_addr = in6addr_any,
          .sin6_scope_id = 0};
    length = sizeof *a;
  } else {
    auto* a = reinterpret_cast<sockaddr_in*>(&address);
    a->sin_family = AF_INET;
    a->sin_port = htons(static_cast<uint16_t>(port));
    a->sin_addr.s_addr = htonl(reach == Reach::this_host ? INADDR_LOOPBACK : INADDR_ANY);
    length = sizeof *a;
  }
  if (bind(s.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      listen(s.get(), kBacklog) != 0)
    return Descriptor();
  return s;
}

int port_of(const Descriptor& s) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (getsockname(s.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
    throw Error(Errc::io, "control_channel", fmt::format("getsockname: {}", std::strerror(errno)));
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

Descriptor try_connect(const addrinfo& to, int timeout_ms) {
  Descriptor s(socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!s) return s;
  if (connect(s.get(), to.ai_addr, to.ai_addrlen) != 0) {
    int error = 0;
    socklen_t length = sizeof error;
    if (errno != EINPROGRESS || !wait_for(s.get(), POLLOUT, timeout_ms) ||
        getsockopt(s.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0)
      return Descriptor();
  }
  fcntl(s.get(), F_SETFL, fcntl(s.get(), F_GETFL) & ~O_NONBLOCK);
  prepare(s.get());
  return s;
}

}  // namespace

Descriptor::~Descriptor() {
  if (fd_ >= 0) ::close(fd_);
}

FrameReader::Result FrameReader::read(int fd) {
  for (;;) {
    FrameHeader& header = frame_.header;
    const bool in_header = received_ < sizeof header;
    std::byte* to = in_header ? reinterpret_cast<std::byte*>(&header) + received_
                              : frame_.payload.data() + (received_ - sizeof header);
    const size_t missing = (in_header ? 0 : header.bytes) + sizeof header - received_;
    const ssize_t n = recv(fd, to, missing, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Result::nothing_yet;
    if (n <= 0) return Result::closed;
    received_ += static_cast<size_t>(n);
    if (in_header && received_ == sizeof header) {
      const bool ours = header.type >= FrameType::data && header.type <= FrameType::bye;
      if (!ours || header.bytes > kMaxFrameBytes) return Result::closed;
      frame_.payload.resize(header.bytes);
    }
    if (received_ >= sizeof header && received_ == sizeof header + header.bytes)
      return Result::frame;
  }
}

Frame FrameReader::take() {
  received_ = 0;
  return std::exchange(frame_, Frame{});
}

bool send_frame(int fd, FrameHeader header, const void* payload,
                const std::atomic<bool>& cancelled) {
  const auto* body = static_cast<const std::byte*>(payload);
  const size_t total = sizeof header + header.bytes;
  for (size_t sent = 0; sent < total;) {
    iovec parts[2];
    int count = 0;
    if (sent < sizeof header)
      parts[count++] = {reinterpret_cast<std::byte*>(&header) + sent, sizeof header - sent};
    const size_t body_sent = sent < sizeof header ? 0 : sent - sizeof header;
    if (header.bytes > body_sent)
      parts[count++] = {const_cast<std::byte*>(body) + body_sent, header.bytes - body_sent};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = static_cast<size_t>(count);
    const ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      sent += static_cast<size_t>(n);
    } else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (cancelled.load()) {
        // After half a frame the stream cannot be continued: let the peer see its end.
        if (sent > 0) shutdown(fd, SHUT_RDWR);
        return false;
      }
      wait_for(fd, POLLOUT, kSendSliceMs);
    } else if (n < 0 && errno != EINTR) {
      return false;
    }
  }
  return true;
}

int listen_on(Reach reach, int first_port, int ports, Descriptor& listener) {
  const int last = first_port == 0 ? 0 : first_port + ports - 1;
  for (int port = first_port; port <= last; ++port) {
    // IPv6 sockets take IPv4 too; a host without IPv6 has only the latter.
    if (reach == Reach::any_host) listener = try_listen(AF_INET6, reach, port);
    if (!listener) listener = try_listen(AF_INET, reach, port);
    if (listener) return port_of(listener);
  }
  throw Error(
      Errc::io, "control_channel",
      fmt::format(
          "rank 0 can listen on none of the ports {} to {} ({}): set MASTER_PORT to another "
          "value",
          first_port, last, std::strerror(errno)));
}

Descriptor connect_to(const std::string& host, int port, int timeout_ms) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
      code != 0)
    throw Error(
        Errc::io, "control_channel",
        fmt::format("the host of rank 0, '{}', is unknown here ({}): set MASTER_ADDR to a name or "
                    "address that every host can reach",
                    host, gai_strerror(code)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, freeaddrinfo);
  for (const addrinfo* a = found; a; a = a->ai_next)
    if (Descriptor s = try_connect(*a, timeout_ms)) return s;
  return Descriptor();
}

std::string local_address_of(const Descriptor& connection) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char host[NI_MAXHOST] = {};
  int code = getsockname(connection.get(), reinterpret_cast<sockaddr*>(&address), &length);
  if (code == 0)
    code = getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host, sizeof host, nullptr, 0,
                       NI_NUMERICHOST);
  if (code != 0)
    throw Error(Errc::io, "control_channel", "a connection without an address of this host");
  const std::string text = host;
  constexpr std::string_view kMapped = "::ffff:";  // IPv4 on a socket of both families
  return text.starts_with(kMapped) ? text.substr(kMapped.size()) : text;
}

Descriptor accept_from(const Descriptor& listener, int timeout_ms) {
  if (!wait_for(listener.get(), POLLIN, timeout_ms)) return Descriptor();
  Descriptor s(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (s) prepare(s.get());
  return s;
}

bool receive_exactly(int fd, void* data, size_t bytes, int timeout_ms) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  auto* to = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0 || !wait_for(fd, POLLIN, static_cast<int>(left.count()))) return false;
    const ssize_t n = recv(fd, to, bytes, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN)) return false;
    if (n > 0) {
      to += n;
      bytes -= static_cast<size_t>(n);
    }
  }
  return true;
}

}  // namespace saturate::parallel
