// SPDX-License-Identifier: Apache-2.0
#include "serve/http_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "base/text.h"

namespace saturate::serve {
namespace {

bool is_token(std::string_view text) {
  constexpr std::string_view kOthers = "!#$%&'*+-.^_`|~";
  return !text.empty() && std::ranges::all_of(text, [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           kOthers.find(c) != std::string_view::npos;
  });
}

bool has_control(std::string_view text) {
  return std::ranges::any_of(
      text, [](char c) { return (static_cast<unsigned char>(c) < 32 && c != '\t') || c == 127; });
}

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return out;
}

std::string_view without_blanks(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

// All of `text` as a number of this base; 2^63 and more are none.
bool parse_number(std::string_view text, int base, uint64_t& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return !text.empty() && error == std::errc() && end == text.data() + text.size() &&
         value <= static_cast<uint64_t>(INT64_MAX);
}

// Whether a comma-separated list holds this word, in lower case.
bool lists(std::string_view header, std::string_view word) {
  while (!header.empty()) {
    const size_t comma = std::min(header.find(','), header.size());
    if (lower(without_blanks(header.substr(0, comma))) == word) return true;
    header.remove_prefix(std::min(comma + 1, header.size()));
  }
  return false;
}

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string decode_form(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '+') {
      out += ' ';
    } else if (text[i] == '%' && i + 2 < text.size() && hex_value(text[i + 1]) >= 0 &&
               hex_value(text[i + 2]) >= 0) {
      out += static_cast<char>(hex_value(text[i + 1]) * 16 + hex_value(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

std::string_view HttpRequest::header(std::string_view name) const noexcept {
  for (const auto& [key, value] : headers)
    if (key == name) return value;
  return {};
}

void HttpParser::fail(int status, std::string message) {
  state_ = State::failed;
  problem_ = {status, std::move(message)};
  request_.keep_alive = false;  // where the next request begins is not known
}

size_t HttpParser::take(std::string_view bytes) {
  size_t taken = 0;
  while (taken < bytes.size() && state_ != State::complete && state_ != State::failed) {
    const std::string_view rest = bytes.substr(taken);
    const bool data = state_ == State::body && (chunk_ == Chunk::none || chunk_ == Chunk::data);
    taken += data ? take_body(rest) : take_line(rest);
  }
  return taken;
}

size_t HttpParser::take_line(std::string_view bytes) {
  const size_t end = bytes.find('\n');
  const std::string_view part = bytes.substr(0, end);
  const bool first = state_ == State::line;
  const size_t most = first ? limits_.line_bytes : limits_.head_bytes - head_bytes_;
  if (line_.size() + part.size() > most) {
    if (first) {
      fail(414, fmt::format("the request line is longer than {} bytes", limits_.line_bytes));
    } else {
      fail(431, fmt::format("the headers are longer than {} bytes", limits_.head_bytes));
    }
    return bytes.size();
  }
  line_ += part;
  begun_ = begun_ || (!line_.empty() && line_ != "\r");
  if (end == std::string_view::npos) return bytes.size();
  if (!line_.empty() && line_.back() == '\r') line_.pop_back();
  if (!first) head_bytes_ = std::min(limits_.head_bytes, head_bytes_ + line_.size() + 1);
  line_done();
  line_.clear();
  return end + 1;
}

void HttpParser::line_done() {
  if (state_ == State::line) {
    if (!line_.empty()) request_line();  // blank lines before a request are passed over
    return;
  }
  if (state_ == State::body) return chunk_line();
  if (line_.empty()) return headers_done();
  header_line();
}

void HttpParser::request_line() {
  const size_t first = line_.find(' '), last = line_.rfind(' ');
  if (first == std::string::npos || last == first || has_control(line_) ||
      !is_token(std::string_view(line_).substr(0, first)))
    return fail(400, "the request line must be METHOD TARGET HTTP/1.1");
  const std::string_view version = std::string_view(line_).substr(last + 1);
  if (version != "HTTP/1.1" && version != "HTTP/1.0") {
    if (version.starts_with("HTTP/")) return fail(505, "only HTTP/1.1 and HTTP/1.0 are understood");
    return fail(400, "the request line must be METHOD TARGET HTTP/1.1");
  }
  request_.method = line_.substr(0, first);
  std::string target = line_.substr(first + 1, last - first - 1);
  if (target.starts_with("http://")) {  // as to a proxy
    const size_t path = target.find('/', 7);
    target = path == std::string::npos ? "/" : target.substr(path);
  }
  if (target.empty() || target.find(' ') != std::string::npos ||
      (target.front() != '/' && target != "*"))
    return fail(400, "the target of the request must be a path that begins with /");
  const size_t question = target.find('?');
  request_.path = target.substr(0, question);
  if (question != std::string::npos) request_.query = target.substr(question + 1);
  request_.http_1_0 = version == "HTTP/1.0";
  request_.keep_alive = !request_.http_1_0;
  state_ = State::headers;
}

void HttpParser::header_line() {
  if (line_.front() == ' ' || line_.front() == '\t')
    return fail(400, "a header begins with a blank; folded headers are not understood");
  const size_t colon = line_.find(':');
  if (colon == std::string::npos || !is_token(std::string_view(line_).substr(0, colon)) ||
      has_control(line_))
    return fail(400, "a header must be NAME: VALUE without control characters");
  if (request_.headers.size() == limits_.headers)
    return fail(431, fmt::format("there are more than {} headers", limits_.headers));
  request_.headers.emplace_back(
      lower(std::string_view(line_).substr(0, colon)),
      std::string(without_blanks(std::string_view(line_).substr(colon + 1))));
}

// Says how long the body is; false when the request was refused.
bool HttpParser::length_and_coding() {
  std::string_view length, coding;
  int lengths = 0, codings = 0;
  for (const auto& [name, value] : request_.headers) {
    if (name == "content-length") {
      length = value;
      ++lengths;
    } else if (name == "transfer-encoding") {
      coding = value;
      ++codings;
    }
  }
  if (lengths > 1 || codings > 1 || (lengths > 0 && codings > 0)) {
    fail(400, "the length of the body is given more than once");
    return false;
  }
  if (codings > 0) {
    if (request_.http_1_0 || lower(coding) != "chunked") {
      fail(501, "the only Transfer-Encoding understood is chunked, of HTTP/1.1");
      return false;
    }
    chunk_ = Chunk::size;
    return true;
  }
  if (lengths > 0 && !parse_number(length, 10, left_)) {
    fail(400, "Content-Length is no number of bytes");
    return false;
  }
  if (left_ > limits_.body_bytes) {
    fail(413,
         fmt::format("the body has {} bytes and at most {} are taken", left_, limits_.body_bytes));
    return false;
  }
  return true;
}

void HttpParser::headers_done() {
  if (!request_.http_1_0 && request_.header("host").empty() &&
      std::ranges::none_of(request_.headers, [](auto& h) { return h.first == "host"; }))
    return fail(400, "an HTTP/1.1 request needs a Host header");
  const std::string_view connection = request_.header("connection");
  if (lists(connection, "close")) request_.keep_alive = false;
  if (request_.http_1_0 && lists(connection, "keep-alive")) request_.keep_alive = true;
  if (!length_and_coding()) return;
  if (const std::string_view expect = request_.header("expect"); !expect.empty()) {
    if (lower(expect) != "100-continue")
      return fail(417, "the only Expect understood is 100-continue");
    wants_continue_ = !request_.http_1_0 && (left_ > 0 || chunk_ != Chunk::none);
  }
  state_ = left_ == 0 && chunk_ == Chunk::none ? State::complete : State::body;
  head_bytes_ = 0;  // of trailers from here on
}

void HttpParser::chunk_line() {
  if (chunk_ == Chunk::trailers) {
    if (line_.empty()) state_ = State::complete;
    return;
  }
  if (chunk_ == Chunk::data_end) {
    if (!line_.empty()) return fail(400, "a chunk is longer than it says");
    chunk_ = Chunk::size;
    head_bytes_ = 0;
    return;
  }
  const std::string_view size = std::string_view(line_).substr(0, line_.find(';'));
  if (!parse_number(without_blanks(size), 16, left_))
    return fail(400, "the size of a chunk is no hexadecimal number");
  if (left_ > limits_.body_bytes - request_.body.size())
    return fail(413, fmt::format("the body has more than {} bytes", limits_.body_bytes));
  chunk_ = left_ == 0 ? Chunk::trailers : Chunk::data;
}

size_t HttpParser::take_body(std::string_view bytes) {
  const size_t part = static_cast<size_t>(std::min<uint64_t>(left_, bytes.size()));
  request_.body.append(bytes.substr(0, part));
  left_ -= part;
  if (left_ > 0) return part;
  if (chunk_ == Chunk::none) state_ = State::complete;
  chunk_ = chunk_ == Chunk::none ? Chunk::none : Chunk::data_end;
  return part;
}

std::vector<std::pair<std::string, std::string>> parse_form(std::string_view text) {
  std::vector<std::pair<std::string, std::string>> out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('&'), text.size());
    const std::string_view field = text.substr(0, end);
    const size_t equals = std::min(field.find('='), field.size());
    if (!field.empty())
      out.emplace_back(decode_form(field.substr(0, equals)),
                       decode_form(field.substr(std::min(equals + 1, field.size()))));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

std::string allowed_origin(const std::vector<std::string>& allowed, std::string_view origin) {
  if (origin.empty()) return {};
  for (const std::string& one : allowed)
    if (one == "*" || one == origin) return one;
  return {};
}

std::string_view status_phrase(int status) noexcept {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Unknown";
  }
}

}  // namespace saturate::serve
