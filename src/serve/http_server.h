// SPDX-License-Identifier: Apache-2.0
// HTTP/1.1 on one thread: connections, limits, answers whole or in pieces. What a request means is the
// handler's.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "serve/http_parser.h"

namespace saturate::serve {

struct HttpReply {
  int status = 200;
  std::string body = {};
  std::string type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers =
      {};  // besides those of length and connection
};

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: one that is free
  HttpLimits limits = {};
  // Pages of these may ask from a browser (Access-Control-Allow-Origin): "https://a.org", "*" for all.
  std::vector<std::string> origins = {};
  int64_t connections = 1024;  // one more is answered with 503
  double read_seconds = 30;    // for a whole request, from its first byte: 408
  double answer_seconds =
      60;  // from a whole request to the end of its answer: 504, or a stream that ends
  double idle_seconds = 75;            // between two requests
  double write_seconds = 30;           // that a client may take nothing of an answer
  size_t unsent_bytes = 8 << 20;       // of a stream that its client does not take
  std::vector<int> stop_signals = {};  // the first drains, the second ends at once
  double drain_seconds = 30;           // for what was accepted before drain()
};

class HttpLoop;

/// One request and the way to answer it. Every method but request() may be called from any thread, and
/// does nothing once the client has gone, the time is over or the answer is whole.
class Exchange {
 public:
  Exchange(std::shared_ptr<HttpLoop> loop, uint64_t connection, HttpRequest request);
  ~Exchange();  // an exchange that nobody answered is answered with 500

  HttpRequest& request() noexcept { return request_; }

  // The answer as a whole.
  void reply(HttpReply reply);
  // The same in pieces: the head (its body is not sent), then pieces, then the end. `last` is sent
  // in place of the rest when the time is over.
  void start(HttpReply head, std::string last);
  void send(std::string piece);
  void finish();

  // Nobody waits any more: the client has gone or the time is over. Work for it can stop.
  bool cancelled() const noexcept { return cancelled_.load(std::memory_order_relaxed); }

 private:
  friend class HttpLoop;
  std::shared_ptr<HttpLoop> loop_;
  const uint64_t connection_;
  HttpRequest request_;
  std::atomic<bool> cancelled_{false}, answered_{false};
};

struct HttpCounts {
  int64_t connections = 0, open_exchanges = 0;
  uint64_t accepted = 0, refused = 0;  // connections
};

// Before models are loaded, which takes a while. Errors: unsupported where the build has no libevent.
void require_http();

/// Serves until it is drained. The thread that calls run() is the only one that reads and writes
/// sockets; the handler is called there and must return at once.
class HttpServer {
 public:
  using Handler = std::function<void(std::shared_ptr<Exchange>)>;
  // The body that tells a problem, in the form that clients of this path understand.
  using Problem = std::function<HttpReply(const std::string& path, const HttpProblem&)>;
  // Of each answer when it was given away: seconds since the request was whole.
  using Answered = std::function<void(const std::string& path, int status, double seconds)>;

  // Listens from here on. Errors: io (the port is taken), invalid_argument (no such host),
  // unsupported where the build has no libevent.
  HttpServer(const HttpServerOptions& options, Handler handler, Problem problem, Answered answered);
  ~HttpServer();  // run() has returned
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const noexcept;
  void run();  // returns when drained, or stopped
  // From any thread. New requests are still read, and `draining()` tells the handler to refuse them;
  // run() returns when every exchange is answered, at most drain_seconds later.
  void drain();
  void stop();  // run() returns; what is open is cut off
  bool draining() const noexcept;
  HttpCounts counts() const noexcept;  // from any thread
  int64_t cut_off() const noexcept;    // exchanges not answered when run() returned
  int64_t left() const noexcept;       // those whose client went, or took nothing

 private:
  std::shared_ptr<HttpLoop> loop_;
};

}  // namespace saturate::serve
