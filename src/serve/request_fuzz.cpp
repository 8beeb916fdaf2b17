// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: whatever the bytes, a request is read or refused, alike in one piece and byte by
// byte; and whatever the body, it is understood or refused with a status; and whatever the schema, some byte
// leads on from all that it allows.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/utf8.h"
#include "serve/http_parser.h"
#include "serve/json/automaton.h"
#include "serve/json/text_schema.h"
#include "serve/libretranslate.h"
#include "serve/openai.h"
#include "serve/request_error.h"
#include "serve/tool_format.h"

using namespace saturate;
using namespace saturate::serve;

namespace {

constexpr HttpLimits kLimits{.line_bytes = 64, .head_bytes = 128, .headers = 6, .body_bytes = 64};

bool over(const HttpParser& p) {
  return p.state() == HttpParser::State::complete || p.state() == HttpParser::State::failed;
}

void read_requests(std::string_view bytes) {
  for (int count = 0; count < 4 && !bytes.empty(); ++count) {
    HttpParser whole(kLimits), slow(kLimits);
    const size_t taken = whole.take(bytes);
    size_t at = 0;
    while (at < bytes.size() && !over(slow)) at += slow.take(bytes.substr(at, 1));
    SAT_ASSERT(whole.state() == slow.state());
    SAT_ASSERT(whole.request().body.size() <= kLimits.body_bytes);
    if (whole.state() == HttpParser::State::failed) {
      SAT_ASSERT(whole.problem().status == slow.problem().status && whole.problem().status >= 400);
      return;
    }
    SAT_ASSERT(taken == at && whole.request().body == slow.request().body);
    SAT_ASSERT(whole.request().headers == slow.request().headers);
    bytes.remove_prefix(taken);
  }
}

template <class Parse>
void read_body(Parse parse) {
  try {
    parse();
  } catch (const RequestError& e) {
    SAT_ASSERT(e.status >= 400 && e.status < 500);
  } catch (const Error& e) {
    SAT_ASSERT(e.code() == Errc::invalid_argument);
  }
}

// As far as `text` goes; where a byte of it may not come, the next that may.
void follow(JsonAutomaton automaton, std::string_view text) {
  std::vector<int32_t> stacks = {automaton.start()}, next;
  for (const char wanted : text.substr(0, 256)) {
    bool complete = false;
    for (const int32_t s : stacks) complete = complete || automaton.complete(s);
    next.clear();
    for (unsigned i = 0; i < 256 && next.empty(); ++i)
      for (const int32_t s : stacks)
        automaton.step(s, static_cast<unsigned char>(static_cast<unsigned char>(wanted) + i), next);
    SAT_ASSERT(complete || !next.empty());
    if (next.empty()) return;
    stacks.assign(next.begin(), next.begin() + std::min<std::ptrdiff_t>(std::ssize(next), 64));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  read_requests(text);
  const JsonLimits limits{.max_bytes = 1 << 16, .max_values = 1 << 12};
  read_body([&] { parse_translate(text, "application/json", limits); });
  read_body([&] { parse_translate(text, "application/x-www-form-urlencoded", limits); });
  read_body([&] { parse_batch(parse_body(text, limits)); });
  read_body([&] {
    follow(JsonAutomaton(compile_json_schema(parse_body(text, limits), "schema")), text);
  });
  if (find_invalid_utf8(text) == text.npos)
    read_body([&] { follow(JsonAutomaton(text_of_pattern(text, "regex")), text); });
  read_body([&] { parse_completion(parse_body(text, limits)); });
  read_body([&] {
    const CompletionRequest r = parse_chat(parse_body(text, limits));
    chat_prompt(*find_chat_template("llama3"), r.messages);
    for (const char* name : {"chatml", "llama3.1", "mistral-v3"}) {
      const ChatTemplate& t = *find_chat_template(name);
      read_body([&] { chat_prompt(t, r.messages, r.tools.get()); });
      if (!r.tools) continue;
      const SaidCalls said = said_calls(*r.tools, t.tools, std::string(text));
      SAT_ASSERT(certain_content(*r.tools, t.tools, text) <= text.size() &&
                 said.content.size() <= text.size());
    }
  });
  return 0;
}
