// SPDX-License-Identifier: Apache-2.0
// What other threads call: everything goes through HttpLoop::post().
#include <memory>
#include <utility>

#include "serve/http_loop.h"
#include "serve/http_server.h"

namespace saturate::serve {

void require_http() {}

Exchange::Exchange(std::shared_ptr<HttpLoop> loop, uint64_t connection, HttpRequest request)
    : loop_(std::move(loop)), connection_(connection), request_(std::move(request)) {}

Exchange::~Exchange() {
  if (answered_ || cancelled_) return;
  loop_->post([loop = loop_.get(), id = connection_] {
    loop->reply(id, {.status = 500, .body = "{\"error\":\"the request was lost\"}\n"});
  });
}

// The loop outlives its tasks, which it holds.
void Exchange::reply(HttpReply reply) {
  if (answered_.exchange(true)) return;
  loop_->post([loop = loop_.get(), id = connection_, r = std::move(reply)] { loop->reply(id, r); });
}

void Exchange::start(HttpReply head, std::string last) {
  loop_->post([loop = loop_.get(), id = connection_, r = std::move(head),
               l = std::move(last)]() mutable { loop->start(id, r, std::move(l)); });
}

void Exchange::send(std::string piece) {
  loop_->post([loop = loop_.get(), id = connection_, p = std::move(piece)] { loop->send(id, p); });
}

void Exchange::finish() {
  if (answered_.exchange(true)) return;
  loop_->post([loop = loop_.get(), id = connection_] { loop->finish(id); });
}

HttpServer::HttpServer(const HttpServerOptions& options, Handler handler, Problem problem,
                       Answered answered)
    : loop_(std::make_shared<HttpLoop>(options, std::move(handler), std::move(problem),
                                       std::move(answered))) {}
HttpServer::~HttpServer() { loop_->shut(); }

int HttpServer::port() const noexcept { return loop_->port; }
void HttpServer::run() { loop_->run(); }
void HttpServer::drain() {
  loop_->draining = true;
  loop_->post([loop = loop_.get()] { loop->drain(); });
}
void HttpServer::stop() {
  loop_->post([loop = loop_.get()] { loop->stop(); });
}
bool HttpServer::draining() const noexcept { return loop_->draining; }
int64_t HttpServer::cut_off() const noexcept { return loop_->cut_off; }
int64_t HttpServer::left() const noexcept { return loop_->left; }
HttpCounts HttpServer::counts() const noexcept {
  return {.connections = loop_->connection_count,
          .open_exchanges = loop_->exchange_count,
          .accepted = loop_->accepted,
          .refused = loop_->refused};
}

}  // namespace saturate::serve
