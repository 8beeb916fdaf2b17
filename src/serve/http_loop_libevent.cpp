// SPDX-License-Identifier: Apache-2.0
// Why not libevent's own evhttp (2.1.12): while a request is answered it either does not read, and so does
// not see the client go, or ends the process when a byte comes (http.c, evhttp_read_cb); and it
// bounds neither the time of a whole request nor the number of connections (docs/adr/0068).
#include "serve/http_loop.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <ctime>

#include "base/error.h"
#include "base/log.h"

namespace saturate::serve {
namespace {

using State = HttpConnection::State;
using Clock = std::chrono::steady_clock;

// A client reads its answer before it sees the connection end only if nothing that it sent is unread.
constexpr double kLingerSeconds = 5;
constexpr size_t kReadAhead = size_t{64} << 10;  // bytes of a connection that wait to be understood

timeval to_timeval(double seconds) {
  timeval t{};
  t.tv_sec = static_cast<time_t>(seconds);
  t.tv_usec = static_cast<suseconds_t>((seconds - static_cast<double>(t.tv_sec)) * 1e6);
  return t;
}

evbuffer* output(const HttpConnection& c) { return bufferevent_get_output(c.stream); }

void write(HttpConnection& c, std::string_view text) {
  evbuffer_add(output(c), text.data(), text.size());
}

std::string date_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[40];
  return {text, std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &parts)};
}

}  // namespace

// What libevent calls.
struct HttpCallbacks {
  static HttpConnection& connection(void* c) { return *static_cast<HttpConnection*>(c); }
  static void accepted(evconnlistener*, evutil_socket_t fd, sockaddr*, int, void* loop) {
    static_cast<HttpLoop*>(loop)->accept(fd);
  }
  // Out of descriptors or memory: the kernel keeps who waits; we look again in a while.
  static void accept_failed(evconnlistener* listener, void* loop) {
    auto* const l = static_cast<HttpLoop*>(loop);
    log_warning(fmt::format("[serve] no connection can be accepted: {}; trying again in a second",
                            std::strerror(errno)));
    evconnlistener_disable(listener);
    const timeval t = to_timeval(1);
    event_add(l->accept_timer_, &t);
  }
  static void accept_again(evutil_socket_t, short, void* loop) {
    evconnlistener_enable(static_cast<HttpLoop*>(loop)->listener_);
  }
  static void readable(bufferevent*, void* c) {
    HttpConnection& k = connection(c);
    if (k.state == State::lingering || k.state == State::closing) {
      evbuffer* const in = bufferevent_get_input(k.stream);
      evbuffer_drain(in, evbuffer_get_length(in));
    } else if (k.state != State::answering) {
      k.loop->process(k);
    }
  }
  static void written(bufferevent*, void* c) {
    HttpConnection& k = connection(c);
    if (k.state == State::closing) k.loop->flushed(k);
  }
  static void happened(bufferevent*, short what, void* c) {
    HttpConnection& k = connection(c);
    // Half of a connection that we are about to close anyway: its answer may still arrive.
    if ((what & BEV_EVENT_EOF) != 0 && k.state == State::closing) return;
    k.loop->gone(k);
  }
  static void timer(evutil_socket_t, short, void* c) {
    connection(c).loop->time_is_over(connection(c));
  }
  static void woken(evutil_socket_t fd, short, void* loop) {
    auto* const l = static_cast<HttpLoop*>(loop);
    uint64_t count = 0;
    static_cast<void>(!::read(fd, &count, sizeof count));
    std::vector<std::function<void()>> tasks;
    {
      const std::lock_guard lock(l->mutex_);
      tasks.swap(l->tasks_);
    }
    for (const auto& task : tasks) task();
  }
  static void drained(evutil_socket_t, short, void* loop) { static_cast<HttpLoop*>(loop)->stop(); }
  static void signal(evutil_socket_t, short, void* loop) {
    auto* const l = static_cast<HttpLoop*>(loop);
    if (l->draining.exchange(true)) return l->stop();
    l->drain();
  }
};

HttpLoop::HttpLoop(const HttpServerOptions& o, HttpServer::Handler handler,
                   HttpServer::Problem problem, HttpServer::Answered answered)
    : options(o),
      handler_(std::move(handler)),
      problem_(std::move(problem)),
      answered_(std::move(answered)) {
  std::signal(SIGPIPE, SIG_IGN);  // a client that has gone is an error of write, not the end
  base_ = event_base_new();
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (base_ == nullptr || wake_fd_ < 0)
    throw Error(Errc::io, "serve", "the event loop cannot be made: no descriptors are left");
  wake_ = event_new(base_, wake_fd_, EV_READ | EV_PERSIST, HttpCallbacks::woken, this);
  event_add(wake_, nullptr);
  drain_timer_ = event_new(base_, -1, 0, HttpCallbacks::drained, this);
  accept_timer_ = event_new(base_, -1, 0, HttpCallbacks::accept_again, this);
  try {
    listen();
  } catch (...) {
    shut();
    throw;
  }
  for (const int number : options.stop_signals) {
    signals_.push_back(evsignal_new(base_, number, HttpCallbacks::signal, this));
    event_add(signals_.back(), nullptr);
  }
}

HttpLoop::~HttpLoop() { shut(); }

void HttpLoop::listen() {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  const std::string port_text = std::to_string(options.port);
  if (const int e = getaddrinfo(options.host.c_str(), port_text.c_str(), &hints, &found); e != 0) {
    throw Error(Errc::invalid_argument, "serve",
                fmt::format("no address '{}': {}; give an address of this machine, 0.0.0.0 for all",
                            options.host, gai_strerror(e)));
  }
  listener_ =
      evconnlistener_new_bind(base_, HttpCallbacks::accepted, this,
                              LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE,
                              SOMAXCONN, found->ai_addr, static_cast<int>(found->ai_addrlen));
  const int error = errno;
  freeaddrinfo(found);
  if (listener_ == nullptr) {
    throw Error(Errc::io, "serve",
                fmt::format("cannot listen on {} port {}: {}; give another --port", options.host,
                            options.port, std::strerror(error)));
  }
  evconnlistener_set_error_cb(listener_, HttpCallbacks::accept_failed);
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  getsockname(evconnlistener_get_fd(listener_), reinterpret_cast<sockaddr*>(&bound), &size);
  port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                           : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
}

void HttpLoop::run() {
  event_base_dispatch(base_);
  cut_off = std::ssize(exchanges_) + unflushed_;
  shut();
}

void HttpLoop::shut() {
  {
    const std::lock_guard lock(mutex_);
    if (shut_) return;
    shut_ = true;
    tasks_.clear();
  }
  while (!connections_.empty()) forget(*connections_.begin()->first);
  if (listener_ != nullptr) evconnlistener_free(listener_);
  for (event* e : {wake_, drain_timer_, accept_timer_})
    if (e != nullptr) event_free(e);
  for (event* e : signals_) event_free(e);
  if (base_ != nullptr) event_base_free(base_);
  if (wake_fd_ >= 0) ::close(wake_fd_);
}

void HttpLoop::post(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  if (shut_) return;
  tasks_.push_back(std::move(task));
  const uint64_t one = 1;
  if (tasks_.size() == 1) static_cast<void>(!::write(wake_fd_, &one, sizeof one));
}

void HttpLoop::drain() {
  const timeval t = to_timeval(options.drain_seconds);
  event_add(drain_timer_, &t);
  end_if_drained();
}

void HttpLoop::stop() { event_base_loopbreak(base_); }

void HttpLoop::end_if_drained() {
  if (draining && exchanges_.empty() && unflushed_ == 0) stop();
}

void HttpLoop::accept(int fd) {
  if (std::ssize(connections_) >= options.connections) {
    ++refused;
    constexpr std::string_view kFull =
        "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
        "Content-Type: application/json\r\nContent-Length: 33\r\n\r\n"
        "{\"error\":\"too many connections\"}\n";
    static_cast<void>(!::send(fd, kFull.data(), kFull.size(), MSG_DONTWAIT | MSG_NOSIGNAL));
    ::close(fd);
    return;
  }
  ++accepted;
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  auto owned = std::make_unique<HttpConnection>();
  HttpConnection& c = *owned;
  c.loop = this;
  c.parser = HttpParser(options.limits);
  c.stream = bufferevent_socket_new(base_, fd, BEV_OPT_CLOSE_ON_FREE);
  c.timer = event_new(base_, -1, 0, HttpCallbacks::timer, &c);
  connections_.emplace(&c, std::move(owned));
  connection_count = std::ssize(connections_);
  bufferevent_setcb(c.stream, HttpCallbacks::readable, HttpCallbacks::written,
                    HttpCallbacks::happened, &c);
  bufferevent_setwatermark(c.stream, EV_READ, 0, kReadAhead);
  const timeval patience = to_timeval(options.write_seconds);
  bufferevent_set_timeouts(c.stream, nullptr, &patience);
  bufferevent_enable(c.stream, EV_READ | EV_WRITE);
  set_timer(c, options.idle_seconds);
}

void HttpLoop::set_timer(HttpConnection& c, double seconds) {
  const timeval t = to_timeval(seconds);
  event_add(c.timer, &t);
}

void HttpLoop::process(HttpConnection& c) {
  evbuffer* const in = bufferevent_get_input(c.stream);
  while (c.state == State::idle || c.state == State::reading) {
    evbuffer_iovec piece{};
    if (evbuffer_peek(in, -1, nullptr, &piece, 1) < 1 || piece.iov_len == 0) return;
    const size_t taken = c.parser.take({static_cast<const char*>(piece.iov_base), piece.iov_len});
    evbuffer_drain(in, taken);
    if (c.state == State::idle && c.parser.begun()) {
      c.state = State::reading;
      set_timer(c, options.read_seconds);
    }
    if (c.parser.wants_continue() && c.parser.state() == HttpParser::State::body)
      write(c, "HTTP/1.1 100 Continue\r\n\r\n");
    if (c.parser.state() == HttpParser::State::failed) return refuse(c, c.parser.problem());
    if (c.parser.state() == HttpParser::State::complete) return dispatch(c);
  }
}

// What an answer needs to know of its request.
void HttpLoop::take_request(HttpConnection& c, const HttpRequest& request) {
  c.method = request.method;
  c.path = request.path;
  c.origin = allowed_origin(options.origins, request.header("origin"));
}

// Of a request that never became one: nothing behind it can be understood either.
void HttpLoop::refuse(HttpConnection& c, const HttpProblem& problem) {
  take_request(c, c.parser.request());
  c.keep_alive = false;
  c.since = Clock::now();
  answer(c, problem_(c.path, problem));
}

void HttpLoop::dispatch(HttpConnection& c) {
  HttpRequest request = std::move(c.parser.request());
  c.state = State::answering;
  take_request(c, request);
  c.keep_alive = request.keep_alive;
  c.chunked = !request.http_1_0;
  c.streaming = false;
  c.since = Clock::now();
  c.exchange = next_exchange_++;
  exchanges_.emplace(c.exchange, &c);
  exchange_count = std::ssize(exchanges_);
  set_timer(c, options.answer_seconds);
  const auto exchange =
      std::make_shared<Exchange>(shared_from_this(), c.exchange, std::move(request));
  c.waiting = exchange;
  handler_(exchange);
}

HttpConnection* HttpLoop::open(uint64_t exchange) {
  const auto found = exchanges_.find(exchange);
  return found == exchanges_.end() ? nullptr : found->second;
}

void HttpLoop::write_head(HttpConnection& c, const HttpReply& reply, bool whole) {
  c.status = reply.status;
  c.keep_alive = c.keep_alive && !draining && (whole || c.chunked);
  std::string head = fmt::format("HTTP/1.1 {} {}\r\nDate: {}\r\nServer: saturate\r\n", reply.status,
                                 status_phrase(reply.status), date_now());
  if (!reply.type.empty()) head += fmt::format("Content-Type: {}\r\n", reply.type);
  for (const auto& [name, value] : reply.headers) head += fmt::format("{}: {}\r\n", name, value);
  if (!c.origin.empty())
    head += fmt::format("Access-Control-Allow-Origin: {}\r\nVary: Origin\r\n", c.origin);
  if (whole && reply.status != 204) {
    head += fmt::format("Content-Length: {}\r\n", reply.body.size());
  } else if (!whole && c.chunked) {
    head += "Transfer-Encoding: chunked\r\n";
  }
  head += c.keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  write(c, head);
}

void HttpLoop::answer(HttpConnection& c, const HttpReply& reply) {
  write_head(c, reply, true);
  if (c.method != "HEAD") write(c, reply.body);
  answered(c);
}

void HttpLoop::answered(HttpConnection& c) {
  if (answered_)
    answered_(c.path, c.status, std::chrono::duration<double>(Clock::now() - c.since).count());
  exchanges_.erase(c.exchange);
  exchange_count = std::ssize(exchanges_);
  c.exchange = 0;
  c.waiting.reset();
  if (c.keep_alive && !draining) {
    c.state = State::idle;
    c.parser.restart();
    set_timer(c, options.idle_seconds);
    return process(c);  // of a client that did not wait for the answer
  }
  c.state = State::closing;
  ++unflushed_;
  set_timer(c, options.write_seconds);
  // Of a stream without chunks nothing may be left to write, and nothing will be told.
  if (evbuffer_get_length(output(c)) == 0) flushed(c);
}

void HttpLoop::reply(uint64_t exchange, const HttpReply& reply) {
  if (HttpConnection* c = open(exchange); c != nullptr && !c->streaming) answer(*c, reply);
}

void HttpLoop::start(uint64_t exchange, const HttpReply& head, std::string last) {
  HttpConnection* const c = open(exchange);
  if (c == nullptr || c->streaming) return;
  c->streaming = true;
  c->last = std::move(last);
  write_head(*c, head, false);
}

void HttpLoop::send(uint64_t exchange, std::string_view piece) {
  HttpConnection* const c = open(exchange);
  if (c == nullptr || !c->streaming || piece.empty()) return;  // an empty chunk would be the end
  if (c->chunked) write(*c, fmt::format("{:x}\r\n", piece.size()));
  write(*c, piece);
  if (c->chunked) write(*c, "\r\n");
  if (evbuffer_get_length(output(*c)) > options.unsent_bytes) gone(*c);
}

void HttpLoop::finish(uint64_t exchange) {
  HttpConnection* const c = open(exchange);
  if (c == nullptr || !c->streaming) return;
  if (c->chunked) write(*c, "0\r\n\r\n");
  answered(*c);
}

void HttpLoop::time_is_over(HttpConnection& c) {
  if (c.state == State::reading) {
    return refuse(
        c, {408, fmt::format("the request was not whole within {:g} s", options.read_seconds)});
  }
  if (c.state != State::answering) return gone(c);
  if (const auto waiting = c.waiting.lock()) waiting->cancelled_ = true;
  if (!c.streaming) {
    return answer(
        c, problem_(c.path, {504, fmt::format("no answer within {:g} s", options.answer_seconds)}));
  }
  const uint64_t exchange = c.exchange;
  send(exchange, std::string(c.last));
  finish(exchange);
}

// Without the whole answer, if one is still made or lies here.
void HttpLoop::gone(HttpConnection& c) {
  const bool whole = c.state == State::idle || c.state == State::closing;
  if (c.state == State::answering || (whole && evbuffer_get_length(output(c)) > 0)) ++left;
  forget(c);
}

void HttpLoop::forget(HttpConnection& c) {
  if (const auto waiting = c.waiting.lock()) waiting->cancelled_ = true;
  close(c);
}

void HttpLoop::flushed(HttpConnection& c) {
  --unflushed_;
  c.state = State::lingering;
  ::shutdown(bufferevent_getfd(c.stream), SHUT_WR);
  set_timer(c, kLingerSeconds);
  end_if_drained();
}

void HttpLoop::close(HttpConnection& c) {
  if (c.state == State::closing) --unflushed_;
  if (c.exchange != 0) exchanges_.erase(c.exchange);
  exchange_count = std::ssize(exchanges_);
  event_free(c.timer);
  bufferevent_free(c.stream);
  connections_.erase(&c);
  connection_count = std::ssize(connections_);
  end_if_drained();
}

}  // namespace saturate::serve
