// SPDX-License-Identifier: Apache-2.0
// Source: RFC 9112 (HTTP/1.1), as much of it as one answer a connection needs.
#include "observe/top/metrics_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <list>
#include <vector>

#include "base/error.h"

namespace saturate::observe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kConnections = 64, kRequestBytes = 8192;
constexpr auto kPatience = std::chrono::seconds(5);  // for the request, and again for the answer

struct Connection {
  int socket = -1;
  Clock::time_point until;
  std::string request, answer;
  size_t sent = 0;
  bool drained = false;  // everything is sent; what still comes in is thrown away
};

std::string response(int code, const char* reason, std::string_view body, bool with_body,
                     const char* more = "") {
  return fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
      "Content-Length: {}\r\nConnection: close\r\n{}\r\n{}",
      code, reason, body.size(), more, with_body ? body : std::string_view());
}

// `request` holds at least a whole head.
std::string answer_to(std::string_view request, const std::function<std::string()>& metrics) {
  const std::string_view line = request.substr(0, request.find_first_of("\r\n"));
  const size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string_view::npos || last == first ||
      !line.substr(last + 1).starts_with("HTTP/1."))
    return response(400, "Bad Request", "this is no HTTP/1.1 request\n", true);
  const std::string_view method = line.substr(0, first);
  std::string_view path = line.substr(first + 1, last - first - 1);
  path = path.substr(0, path.find('?'));
  const bool get = method == "GET", head = method == "HEAD";
  if (!get && !head)
    return response(405, "Method Not Allowed", "GET or HEAD only\n", true, "Allow: GET, HEAD\r\n");
  if (path == "/metrics") return response(200, "OK", metrics(), get);
  if (path == "/") return response(200, "OK", "metrics are at /metrics\n", get);
  return response(404, "Not Found", "metrics are at /metrics\n", get);
}

bool whole_head(std::string_view request) {
  return request.find("\r\n\r\n") != std::string_view::npos ||
         request.find("\n\n") != std::string_view::npos;
}

}  // namespace

struct MetricsServer::State {
  int listener = -1, port = 0;
  std::list<Connection> connections;

  ~State() {
    for (const Connection& c : connections) close(c.socket);
    if (listener >= 0) close(listener);
  }
  void accept_all() {
    while (connections.size() < kConnections) {
      const int socket = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
      if (socket < 0) return;
      Connection c;
      c.socket = socket;
      c.until = Clock::now() + kPatience;
      connections.push_back(std::move(c));
    }
  }
  // False when the connection is done with.
  bool receive(Connection& c, const std::function<std::string()>& metrics) {
    char bytes[4096];
    const ssize_t n = recv(c.socket, bytes, sizeof bytes, 0);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (c.drained || !c.answer.empty()) return n > 0;
    c.request.append(bytes, static_cast<size_t>(n));
    if (whole_head(c.request)) {
      c.answer = answer_to(c.request, metrics);
    } else if (c.request.size() > kRequestBytes) {
      c.answer = response(431, "Request Header Fields Too Large", "too long a request\n", true);
    } else {
      return n > 0;
    }
    c.until = Clock::now() + kPatience;
    return true;
  }
  bool transmit(Connection& c) {
    const ssize_t n =
        send(c.socket, c.answer.data() + c.sent, c.answer.size() - c.sent, MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    c.sent += static_cast<size_t>(n);
    if (c.sent < c.answer.size()) return true;
    // Closing with unread input would reset the connection and lose the answer: the client closes
    // first, or the time is over.
    shutdown(c.socket, SHUT_WR);
    c.drained = true;
    return true;
  }
};

ListenAddress parse_listen_address(std::string_view text) {
  ListenAddress address;
  std::string_view port = text;
  const size_t colon = text.rfind(':');
  if (colon != std::string_view::npos) {
    port = text.substr(colon + 1);
    std::string_view host = text.substr(0, colon);
    if (host.size() >= 2 && host.front() == '[' && host.back() == ']')
      host = host.substr(1, host.size() - 2);
    if (!host.empty()) address.host = std::string(host);
  }
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc() || end != port.data() + port.size() || port.empty() ||
      address.port < 0 || address.port > 65535)
    throw Error(Errc::invalid_argument, "top",
                fmt::format("'{}' is no address; give [HOST:]PORT, as :9400", text));
  return address;
}

MetricsServer::MetricsServer(const ListenAddress& address) : state_(std::make_unique<State>()) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  if (const int r = getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found); r != 0)
    throw Error(Errc::invalid_argument, "top",
                fmt::format("no address for '{}': {}", address.host, gai_strerror(r)));
  int problem = 0;
  for (const addrinfo* a = found; a && state_->listener < 0; a = a->ai_next) {
    const int s = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const int on = 1;
    if (s >= 0) setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (s >= 0 && bind(s, a->ai_addr, a->ai_addrlen) == 0 && listen(s, 64) == 0) {
      state_->listener = s;
    } else {
      problem = errno;
      if (s >= 0) close(s);
    }
  }
  freeaddrinfo(found);
  if (state_->listener < 0)
    throw Error(
        Errc::io, "top",
        fmt::format("cannot listen on {}:{}: {}; is another program there? give another port",
                    address.host, address.port, std::strerror(problem)));
  sockaddr_storage taken{};
  socklen_t length = sizeof taken;
  char service[16] = "0";
  if (getsockname(state_->listener, reinterpret_cast<sockaddr*>(&taken), &length) == 0)
    getnameinfo(reinterpret_cast<sockaddr*>(&taken), length, nullptr, 0, service, sizeof service,
                NI_NUMERICSERV);
  state_->port = std::atoi(service);
}
MetricsServer::~MetricsServer() = default;

int MetricsServer::port() const { return state_->port; }

void MetricsServer::run(double seconds, const std::function<std::string()>& metrics,
                        const std::function<bool()>& stop) {
  const Clock::time_point end =
      Clock::now() + std::chrono::microseconds(static_cast<int64_t>(seconds * 1e6));
  while (!stop() && Clock::now() < end) {
    std::vector<pollfd> ready;
    const bool room = state_->connections.size() < kConnections;
    ready.push_back({room ? state_->listener : -1, POLLIN, 0});
    for (const Connection& c : state_->connections) {
      const bool sending = !c.answer.empty() && !c.drained;
      ready.push_back({c.socket, static_cast<short>(POLLIN | (sending ? POLLOUT : 0)), 0});
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    const int n =
        poll(ready.data(), ready.size(), static_cast<int>(std::clamp<int64_t>(left, 0, 100)));
    size_t i = 1;
    for (auto c = state_->connections.begin(); c != state_->connections.end(); ++i) {
      const short events = n > 0 ? ready[i].revents : short{0};
      bool keep = Clock::now() < c->until;
      if (keep && (events & (POLLIN | POLLHUP | POLLERR))) keep = state_->receive(*c, metrics);
      // Also right after the request came in: most answers leave at once.
      if (keep && !c->answer.empty() && !c->drained) keep = state_->transmit(*c);
      if (!keep) close(c->socket);
      c = keep ? std::next(c) : state_->connections.erase(c);
    }
    if (n > 0 && (ready[0].revents & POLLIN)) state_->accept_all();
  }
}

}  // namespace saturate::observe
