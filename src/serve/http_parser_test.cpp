// SPDX-License-Identifier: Apache-2.0
#include "serve/http_parser.h"

#include <gtest/gtest.h>

#include <random>

namespace saturate::serve {
namespace {

using State = HttpParser::State;

constexpr HttpLimits kSmall{.line_bytes = 64, .head_bytes = 128, .headers = 4, .body_bytes = 16};

// Feeds `text` in pieces of `step` bytes; the rest is what the parser did not take.
std::string feed(HttpParser& parser, std::string_view text, size_t step) {
  while (!text.empty() && parser.state() != State::complete && parser.state() != State::failed) {
    const size_t taken = parser.take(text.substr(0, step));
    text.remove_prefix(taken);
  }
  return std::string(text);
}

TEST(HttpParser, ReadsRequestsInPiecesOfAnySize) {
  const std::string text =
      "\r\nPOST /a/b?x=1&y=%20 HTTP/1.1\r\nHost: h\r\nX-Name:  two words \r\nContent-Length: "
      "5\r\n\r\nhello"
      "GET / HTTP/1.0\r\n\r\n"
      "PUT /c HTTP/1.1\r\nhost: h\r\nTransfer-Encoding: "
      "Chunked\r\n\r\n3;e=1\r\nabc\r\n0A\r\n0123456789\r\n0\r\n"
      "Trailer: t\r\n\r\n";
  for (size_t step = 1; step <= text.size(); ++step) {
    HttpParser parser(kSmall);
    std::string rest = feed(parser, text, step);
    ASSERT_EQ(parser.state(), State::complete) << step << parser.problem().message;
    EXPECT_EQ(parser.request().method, "POST");
    EXPECT_EQ(parser.request().path, "/a/b");
    EXPECT_EQ(parser.request().query, "x=1&y=%20");
    EXPECT_EQ(parser.request().header("x-name"), "two words");
    EXPECT_EQ(parser.request().body, "hello");
    EXPECT_TRUE(parser.request().keep_alive);
    parser.restart();
    rest = feed(parser, rest, step);
    ASSERT_EQ(parser.state(), State::complete) << step;
    EXPECT_FALSE(parser.request().keep_alive);
    parser.restart();
    rest = feed(parser, rest, step);
    ASSERT_EQ(parser.state(), State::complete) << step;
    EXPECT_EQ(parser.request().body, "abc0123456789");
    EXPECT_EQ(rest, "");
  }
}

TEST(HttpParser, RefusesWhatIsWrongWithTheStatusThatSaysSo) {
  const std::string post = "POST / HTTP/1.1\r\nHost: h\r\n";
  const struct {
    std::string text;
    int status;
  } cases[] = {
      {"GET\r\n", 400},
      {"GET / HTTP/1.1 \r\n", 400},
      {"G(T / HTTP/1.1\r\n", 400},
      {"GET x HTTP/1.1\r\n", 400},
      {"GET /a b HTTP/1.1\r\n", 400},
      {std::string("GET /\0 HTTP/1.1\r\n", 17), 400},
      {"GET / HTTP/2.0\r\n", 505},
      {"GET / HTTP/1.1\r\n\r\n", 400},  // no Host
      {"GET /" + std::string(80, 'a') + " HTTP/1.1\r\n", 414},
      {std::string(200, 'a'), 414},
      {post + " folded: 1\r\n", 400},
      {post + "no colon\r\n", 400},
      {post + "blank : 1\r\n", 400},
      {post + "a: b\rc\r\n", 400},
      {post + "a: " + std::string(200, 'a'), 431},
      {post + "a: 1\r\nb: 1\r\nc: 1\r\nd: 1\r\n", 431},
      {post + "Content-Length: 17\r\n\r\n", 413},
      {post + "Content-Length: 99999999999999999999\r\n\r\n", 400},
      {post + "Content-Length: -1\r\n\r\n", 400},
      {post + "Content-Length: +1\r\n\r\n", 400},
      {post + "Content-Length: 1\r\nContent-Length: 1\r\n\r\n", 400},
      {post + "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {post + "Transfer-Encoding: gzip\r\n\r\n", 501},
      {post + "Transfer-Encoding: chunked\r\n\r\n11\r\n", 413},
      {post + "Transfer-Encoding: chunked\r\n\r\n9\r\n123456789\r\n8\r\n", 413},
      {post + "Transfer-Encoding: chunked\r\n\r\nx\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\n\r\n0\r\n" + std::string(200, 't'), 431},
      {post + "Content-Length: 1\r\nExpect: cake\r\n\r\n", 417},
  };
  for (const auto& c : cases) {
    for (const size_t step : {size_t{1}, size_t{7}, c.text.size()}) {
      HttpParser parser(kSmall);
      feed(parser, c.text, step);
      ASSERT_EQ(parser.state(), State::failed) << c.text;
      EXPECT_EQ(parser.problem().status, c.status) << c.text << parser.problem().message;
      EXPECT_FALSE(parser.request().keep_alive);
    }
  }
}

TEST(HttpParser, SaysOnceThatTheBodyMayCome) {
  HttpParser parser(kSmall);
  parser.take("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_TRUE(parser.wants_continue());
  EXPECT_FALSE(parser.wants_continue());
  parser.take("ok");
  EXPECT_EQ(parser.state(), State::complete);
}

TEST(HttpForm, DecodesFields) {
  const auto fields = parse_form("q=a+b%C3%A9&empty=&=x&%zz=1&last");
  ASSERT_EQ(fields.size(), 5u);
  EXPECT_EQ(fields[0], (std::pair<std::string, std::string>{"q", "a b\xC3\xA9"}));
  EXPECT_EQ(fields[1].second, "");
  EXPECT_EQ(fields[3].first, "%zz");
  EXPECT_EQ(fields[4].first, "last");
}

}  // namespace
}  // namespace saturate::serve
