// SPDX-License-Identifier: Apache-2.0
// Answers GET /metrics of HTTP/1.1 for a metrics collector. Connections are closed after one
// answer; a client that is slow, silent or talks too much is dropped and delays nobody else.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace saturate::observe {

struct ListenAddress {
  std::string host = "127.0.0.1";
  int port = 0;  // 0: any that is free
};
// "9400", ":9400", "host:9400" or "[::1]:9400". Errors: invalid_argument.
ListenAddress parse_listen_address(std::string_view text);

class MetricsServer {
 public:
  // Errors: io when the address cannot be had.
  explicit MetricsServer(const ListenAddress& address);
  ~MetricsServer();

  int port() const;  // the one that was taken
  // Answers requests for `seconds`, or until `stop` says true, which is asked at least ten times a
  // second. Each request for /metrics gets what `metrics` returns then.
  void run(double seconds, const std::function<std::string()>& metrics,
           const std::function<bool()>& stop);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace saturate::observe
