// SPDX-License-Identifier: Apache-2.0
// What clients of others send (docs/guide/serve.md, "Read by clients of others"), over real sockets.
#include <gtest/gtest.h>

#include "serve/running_server_test.h"

namespace saturate::serve {
namespace {

// The pieces of a stream.
std::vector<Json> pieces(const Answer& a) {
  std::vector<Json> all;
  for (size_t at = 0; (at = a.body.find("data: {", at)) != std::string::npos; ++at)
    all.push_back(try_parse_json(a.body.substr(at + 6, a.body.find("\n\n", at) - at - 6)).value());
  return all;
}

// guidellm, and vLLM's own clients.
TEST(OthersClients, UsageComesWithEachPiece) {
  const Running s;
  const auto ask = [&](const std::string& options) {
    return pieces(
        s.post("/v1/completions", completion(R"("max_tokens":9,"ignore_eos":true,"stream":true,)"
                                             R"("stream_options":{)" +
                                             options + "}")));
  };
  const std::vector<Json> all = ask(R"("include_usage":true,"continuous_usage_stats":true)");
  ASSERT_GT(all.size(), 2u);
  int64_t last = 0;
  for (const Json& piece : all) {
    const Json& usage = piece["usage"];
    ASSERT_NE(usage["completion_tokens"].if_int(), nullptr) << piece.dump();
    EXPECT_GE(*usage["completion_tokens"].if_int(), std::max<int64_t>(last, 1));
    EXPECT_EQ(*usage["prompt_tokens"].if_int(), 5);
    last = *usage["completion_tokens"].if_int();
  }
  EXPECT_EQ(last, 9);
  EXPECT_EQ(*all.front()["usage"]["completion_tokens"].if_int(), 1);
  // Without the other option it says nothing, as vLLM has it.
  for (const Json& piece : ask(R"("continuous_usage_stats":true)"))
    EXPECT_TRUE(piece["usage"].is_null());
}

}  // namespace
}  // namespace saturate::serve
