// SPDX-License-Identifier: Apache-2.0
#include "observe/top/metrics_server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "base/error.h"

namespace saturate::observe {
namespace {

class Serving : public ::testing::Test {
 protected:
  Serving() : server_({"127.0.0.1", 0}) {
    thread_ = std::thread([this] {
      server_.run(
          60, [] { return std::string("metric 1\n") + std::string(300000, '#') + "\n"; },
          [this] { return stop_.load(); });
    });
  }
  ~Serving() override {
    stop_ = true;
    thread_.join();
  }
  int connected() const {
    const int s = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(server_.port()));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(s, reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
    return s;
  }
  static std::string rest(int s) {
    std::string text;
    char bytes[65536];
    ssize_t n = 0;
    while ((n = recv(s, bytes, sizeof bytes, 0)) > 0) text.append(bytes, static_cast<size_t>(n));
    EXPECT_EQ(n, 0) << "the connection was reset";
    close(s);
    return text;
  }
  std::string ask(const std::string& request) const {
    const int s = connected();
    EXPECT_EQ(send(s, request.data(), request.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(request.size()));
    return rest(s);
  }

  MetricsServer server_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

TEST_F(Serving, AnswersMetrics) {
  const std::string text = ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_TRUE(text.starts_with("HTTP/1.1 200 OK\r\n")) << text.substr(0, 200);
  EXPECT_NE(text.find("\r\n\r\nmetric 1\n"), std::string::npos);
  EXPECT_NE(text.find("Content-Length: 300010\r\n"), std::string::npos);
  EXPECT_EQ(text.size() - text.find("\r\n\r\n") - 4, 300010u) << "all of it arrived";
}

TEST_F(Serving, AnswersTheRestOfHttp) {
  EXPECT_TRUE(ask("GET /metrics?x=1 HTTP/1.0\n\n").starts_with("HTTP/1.1 200"));
  const std::string head = ask("HEAD /metrics HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"));
  EXPECT_TRUE(ask("GET /x HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
  EXPECT_TRUE(ask("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
  const std::string post = ask("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc");
  EXPECT_TRUE(post.starts_with("HTTP/1.1 405"));
  EXPECT_NE(post.find("Allow: GET, HEAD\r\n"), std::string::npos);
  EXPECT_TRUE(ask("\r\n\r\n").starts_with("HTTP/1.1 400"));
  EXPECT_TRUE(ask("GET /metrics SPDY\r\n\r\n").starts_with("HTTP/1.1 400"));
  EXPECT_TRUE(ask("GET /" + std::string(8190, 'a')).starts_with("HTTP/1.1 431"));
}

TEST_F(Serving, ARequestInPiecesIsOne) {
  const int s = connected();
  for (const char* piece : {"GE", "T /metr", "ics HTTP/1.1\r", "\n\r", "\n"}) {
    send(s, piece, strlen(piece), MSG_NOSIGNAL);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(rest(s).starts_with("HTTP/1.1 200"));
}

TEST_F(Serving, SilentAndSlowClientsDelayNobodyAndAreDropped) {
  std::vector<int> silent;
  for (int i = 0; i < 40; ++i) silent.push_back(connected());
  const int reader = connected();  // asks, and never reads
  const char* request = "GET /metrics HTTP/1.1\r\n\r\n";
  send(reader, request, strlen(request), MSG_NOSIGNAL);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(ask(request).starts_with("HTTP/1.1 200"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  EXPECT_EQ(rest(silent[0]), "") << "closed without an answer";
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(9));
  for (size_t i = 1; i < silent.size(); ++i) close(silent[i]);
  close(reader);
}

TEST(ListenAddress, Parses) {
  EXPECT_EQ(parse_listen_address("9400").host, "127.0.0.1");
  EXPECT_EQ(parse_listen_address(":9400").host, "127.0.0.1");
  EXPECT_EQ(parse_listen_address(":9400").port, 9400);
  EXPECT_EQ(parse_listen_address("0.0.0.0:1").host, "0.0.0.0");
  EXPECT_EQ(parse_listen_address("[::1]:9400").host, "::1");
  for (const char* bad : {"", ":", "x", "host:", ":65536", ":-1", ":9x"})
    EXPECT_THROW(parse_listen_address(bad), Error) << bad;
}

TEST(MetricsServer, PortInUseIsAnError) {
  const MetricsServer first({"127.0.0.1", 0});
  EXPECT_THROW(MetricsServer({"127.0.0.1", first.port()}), Error);
}

}  // namespace
}  // namespace saturate::observe
