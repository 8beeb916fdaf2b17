// SPDX-License-Identifier: Apache-2.0
// In place of the server where libevent is missing.
#include "base/error.h"
#include "serve/http_server.h"

namespace saturate::serve {

class HttpLoop {};

Exchange::Exchange(std::shared_ptr<HttpLoop> loop, uint64_t connection, HttpRequest request)
    : loop_(std::move(loop)), connection_(connection), request_(std::move(request)) {}
Exchange::~Exchange() = default;
void Exchange::reply(HttpReply) {}
void Exchange::start(HttpReply, std::string) {}
void Exchange::send(std::string) {}
void Exchange::finish() {}

void require_http() {
  throw Error(Errc::unsupported, "serve",
              "this program was built without libevent, which the server stands on; install "
              "libevent-dev (./saturate.sh install) and build again");
}
HttpServer::HttpServer(const HttpServerOptions&, Handler, Problem, Answered) { require_http(); }
HttpServer::~HttpServer() = default;
int HttpServer::port() const noexcept { return 0; }
void HttpServer::run() {}
void HttpServer::drain() {}
void HttpServer::stop() {}
bool HttpServer::draining() const noexcept { return false; }
HttpCounts HttpServer::counts() const noexcept { return {}; }
int64_t HttpServer::cut_off() const noexcept { return 0; }
int64_t HttpServer::left() const noexcept { return 0; }

}  // namespace saturate::serve
