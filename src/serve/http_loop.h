// SPDX-License-Identifier: Apache-2.0
// The event loop behind HttpServer. Of libevent it names types only.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "serve/http_server.h"

struct bufferevent;
struct event;
struct event_base;
struct evconnlistener;

namespace saturate::serve {

// One socket. Everything about it happens in the loop's thread.
struct HttpConnection {
  enum class State {
    idle,       // no byte of a request yet
    reading,    // part of one
    answering,  // with the handler
    closing,    // its last answer is on the way
    lingering,  // told that nothing more comes; what it still sends is thrown away
  };
  HttpLoop* loop = nullptr;
  bufferevent* stream = nullptr;
  event* timer = nullptr;
  HttpParser parser{HttpLimits{}};
  State state = State::idle;
  uint64_t exchange = 0;            // while answering
  std::weak_ptr<Exchange> waiting;  // who is to answer it
  std::string method, path, last;
  std::string origin;  // that is told that it may ask, or none
  bool keep_alive = false, chunked = false, streaming = false;
  int status = 0;
  std::chrono::steady_clock::time_point since;  // the request was whole
};

class HttpLoop : public std::enable_shared_from_this<HttpLoop> {
 public:
  HttpLoop(const HttpServerOptions& options, HttpServer::Handler handler,
           HttpServer::Problem problem, HttpServer::Answered answered);
  ~HttpLoop();
  HttpLoop(const HttpLoop&) = delete;
  HttpLoop& operator=(const HttpLoop&) = delete;

  void run();
  void shut();  // frees all that is libevent's; posts come to nothing from now on
  // Runs in the loop's thread, after what was posted before.
  void post(std::function<void()> task);
  void drain();
  void stop();

  // In the loop's thread. An exchange that is no longer open is passed over.
  void reply(uint64_t exchange, const HttpReply& reply);
  void start(uint64_t exchange, const HttpReply& head, std::string last);
  void send(uint64_t exchange, std::string_view piece);
  void finish(uint64_t exchange);

  const HttpServerOptions options;
  int port = 0;
  std::atomic<bool> draining{false};
  std::atomic<int64_t> connection_count{0}, exchange_count{0}, cut_off{0}, left{0};
  std::atomic<uint64_t> accepted{0}, refused{0};

 private:
  friend struct HttpCallbacks;
  void listen();
  void accept(int fd);
  void process(HttpConnection& c);
  void dispatch(HttpConnection& c);
  void refuse(HttpConnection& c, const HttpProblem& problem);
  void answer(HttpConnection& c, const HttpReply& reply);
  void answered(HttpConnection& c);
  void take_request(HttpConnection& c, const HttpRequest& request);
  void write_head(HttpConnection& c, const HttpReply& reply, bool whole);
  void time_is_over(HttpConnection& c);
  void gone(HttpConnection& c);    // the client; frees `c`
  void forget(HttpConnection& c);  // nobody waits for its answer; frees `c`
  void flushed(HttpConnection& c);
  void close(HttpConnection& c);  // frees `c`
  void end_if_drained();
  void set_timer(HttpConnection& c, double seconds);
  HttpConnection* open(uint64_t exchange);

  HttpServer::Handler handler_;
  HttpServer::Problem problem_;
  HttpServer::Answered answered_;
  event_base* base_ = nullptr;
  evconnlistener* listener_ = nullptr;
  event *wake_ = nullptr, *drain_timer_ = nullptr, *accept_timer_ = nullptr;
  std::vector<event*> signals_;
  int wake_fd_ = -1;
  std::map<HttpConnection*, std::unique_ptr<HttpConnection>> connections_;
  std::unordered_map<uint64_t, HttpConnection*> exchanges_;
  uint64_t next_exchange_ = 1;
  int64_t unflushed_ = 0;  // connections that are closing

  std::mutex mutex_;  // of the two below
  std::vector<std::function<void()>> tasks_;
  bool shut_ = false;
};

}  // namespace saturate::serve
