// SPDX-License-Identifier: Apache-2.0
// A client that waits, of one connection.
#pragma once
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>

namespace saturate::serve {

struct Answer {
  int status = 0;  // 0: the connection ended before one
  std::string head, body;

  std::string header(const std::string& name) const {  // in lower case
    std::string lower;
    for (const char c : head) lower += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    const size_t at = lower.find("\r\n" + name + ": ");
    if (at == std::string::npos) return {};
    const size_t value = at + name.size() + 4;
    return lower.substr(value, lower.find("\r\n", value) - value);
  }
};

class Client {
 public:
  explicit Client(int port) : fd_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{20, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  }
  ~Client() { close(); }
  Client(Client&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), rest_(std::move(other.rest_)) {}
  Client& operator=(Client&&) = delete;

  void close() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  bool try_send(std::string_view text) {
    while (!text.empty()) {
      const ssize_t n = ::send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      text.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  void send(std::string_view text) { EXPECT_TRUE(try_send(text)); }
  void send_request(const std::string& line, const std::string& body, const std::string& headers) {
    send(line + " HTTP/1.1\r\nHost: h\r\n" + headers +
         (body.empty() ? "" : "Content-Length: " + std::to_string(body.size()) + "\r\n") + "\r\n" +
         body);
  }
  Answer ask(const std::string& line, const std::string& body, const std::string& headers) {
    send_request(line, body, headers);
    return read({}, line.starts_with("HEAD"));
  }
  Answer ask_raw(const std::string& text) {
    send(text);
    return read();
  }
  // What there is, at least a byte; "" at the end.
  std::string read_some() {
    if (!rest_.empty()) return std::exchange(rest_, {});
    char bytes[4096];
    const ssize_t n = ::recv(fd_, bytes, sizeof bytes, 0);
    return n > 0 ? std::string(bytes, static_cast<size_t>(n)) : std::string();
  }
  // One answer, of which `begun` was read already.
  Answer read(std::string begun = {}, bool head_only = false) {
    std::string text = std::move(begun);
    const auto more = [&] {
      const std::string piece = read_some();
      text += piece;
      return !piece.empty();
    };
    Answer a;
    while (text.find("\r\n\r\n") == std::string::npos)
      if (!more()) return a;
    a.head = text.substr(0, text.find("\r\n\r\n") + 2);
    text.erase(0, a.head.size() + 2);
    a.status = std::stoi(a.head.substr(9, 3));
    if (head_only) return a;
    if (a.header("transfer-encoding") == "chunked") {
      while (true) {
        while (text.find("\r\n") == std::string::npos)
          if (!more()) return a;
        const size_t size = std::stoul(text, nullptr, 16), line = text.find("\r\n") + 2;
        while (text.size() < line + size + 2)
          if (!more()) return a;
        a.body += text.substr(line, size);
        text.erase(0, line + size + 2);
        if (size == 0) break;
      }
    } else if (const std::string length = a.header("content-length"); !length.empty()) {
      while (text.size() < std::stoul(length))
        if (!more()) return a;
      a.body = text.substr(0, std::stoul(length));
      text.erase(0, a.body.size());
    } else {
      while (more()) {
      }
      a.body = std::exchange(text, {});
    }
    rest_ = std::move(text);
    return a;
  }

 private:
  int fd_;
  std::string rest_;
};

}  // namespace saturate::serve
