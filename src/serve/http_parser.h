// SPDX-License-Identifier: Apache-2.0
// Requests of HTTP/1.0 and 1.1 from bytes as they come. Knows nothing of sockets.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace saturate::serve {

struct HttpLimits {
  size_t line_bytes = 8 << 10;   // of the request line
  size_t head_bytes = 32 << 10;  // of all header lines together; of trailers again as many
  size_t headers = 100;
  size_t body_bytes = 1 << 20;  // decoded, if it came in chunks
};

struct HttpRequest {
  std::string method, path, query;  // path without the query; neither is decoded
  std::vector<std::pair<std::string, std::string>> headers;  // names in lower case, as they came
  std::string body;
  bool keep_alive = true;
  bool http_1_0 = false;  // takes no chunks

  // The first header of this name (in lower case), without blanks at its ends, or "".
  std::string_view header(std::string_view name) const noexcept;
};

// What is wrong with a request, as an answer says it.
struct HttpProblem {
  int status = 0;
  std::string message;
};

/// One request after the other. A request that could be read in two ways (two lengths, a length beside
/// chunks, folded or unnamed headers) is refused, so that no proxy before us reads another one.
/// Source: RFC 9112.
class HttpParser {
 public:
  enum class State { line, headers, body, complete, failed };

  explicit HttpParser(const HttpLimits& limits) : limits_(limits) {}

  // Takes what belongs to the request and returns how many bytes that was: fewer than given only
  // when the request is complete or refused. Nothing more is taken then.
  size_t take(std::string_view bytes);

  State state() const noexcept { return state_; }
  // Since the last restart() a byte came that is not of the blank lines before a request.
  bool begun() const noexcept { return begun_; }
  // The client waits for "100 Continue" before it sends the body; true once.
  bool wants_continue() noexcept { return std::exchange(wants_continue_, false); }
  HttpRequest& request() noexcept { return request_; }
  const HttpProblem& problem() const noexcept { return problem_; }  // when failed
  void restart() { *this = HttpParser(limits_); }

 private:
  enum class Chunk { none, size, data, data_end, trailers };
  size_t take_line(std::string_view bytes);
  size_t take_body(std::string_view bytes);
  void line_done();
  void request_line();
  void header_line();
  void chunk_line();
  void headers_done();
  bool length_and_coding();
  void fail(int status, std::string message);

  HttpLimits limits_;
  State state_ = State::line;
  Chunk chunk_ = Chunk::none;
  HttpRequest request_;
  HttpProblem problem_;
  std::string line_;  // what came of the current one, without its end
  size_t head_bytes_ = 0;
  uint64_t left_ = 0;  // of the body, or of a chunk
  bool begun_ = false, wants_continue_ = false;
};

// name=value&... of a form or a query, decoded; '+' is a space. What is malformed stays as it is.
std::vector<std::pair<std::string, std::string>> parse_form(std::string_view text);

// What a page of `origin` is told as the one that may ask: itself where it is one of `allowed`, "*"
// where that is, "" otherwise and for no page.
std::string allowed_origin(const std::vector<std::string>& allowed, std::string_view origin);

// The phrase that goes with a status: "Not Found".
std::string_view status_phrase(int status) noexcept;

}  // namespace saturate::serve
