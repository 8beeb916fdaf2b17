// SPDX-License-Identifier: Apache-2.0
// What masks cost: saturate_json_constraint_bench TOKENIZER [SCHEMA.json TEXT.json]. Each token of the text is
// one state; the first time through masks are made, the second they are looked up.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "serve/json/json_constraint.h"

using namespace saturate;
using namespace saturate::serve;

namespace {

double microseconds_since(std::chrono::steady_clock::time_point begun) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begun)
      .count();
}

constexpr const char* kText =
    R"({"name": "Ada Lovelace, countess", "born": 1815, "works": [{"title": "Notes on the \"Analytical Engine\"", )"
    R"("pages": 66.5, "tags": ["computing", "caf)"
    "\xC3\xA9"
    R"("]}, {"title": "Letters", "pages": 1e2, "tags": []}], "alive": false})";

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2 && argc != 4) {
    std::fprintf(stderr, "usage: %s TOKENIZER [SCHEMA.json TEXT.json]\n", argv[0]);
    return 2;
  }
  const data::Tokenizer tokenizer = data::Tokenizer::load(argv[1]);
  std::string text = kText;
  if (argc == 4) {
    std::ifstream in(argv[3]);
    text.assign(std::istreambuf_iterator<char>(in), {});
  }
  const Json schema = argc == 4 ? read_json_file(argv[2]) : Json{{"type", "object"}};
  model::ModelConfig config;
  config.vocab_target = tokenizer.vocab_size();
  config.eos_id = 0;
  auto begun = std::chrono::steady_clock::now();
  const auto tokens = std::make_shared<const TokenBytes>(token_bytes(tokenizer, config));
  std::printf("%d tokens read in %.0f ms; %d nodes, %d of special tokens\n", tokenizer.vocab_size(),
              microseconds_since(begun) / 1e3, tokens->all().size(), tokens->special().size());
  JsonConstraint constraint(compile_json_schema(schema, "the schema"), tokens, {0});
  std::vector<int32_t> ids;
  tokenizer.encode_text(text, ids);
  for (const char* what : {"made", "looked up"}) {
    std::vector<double> times;
    int32_t state = constraint.start();
    for (const int32_t id : ids) {
      begun = std::chrono::steady_clock::now();
      const auto mask = constraint.allowed(state);
      times.push_back(microseconds_since(begun));
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1u) == 0) {
        std::fprintf(stderr, "\"%s\" is not allowed there\n", tokens->of(id).c_str());
        return 1;
      }
      state = constraint.next(state, id);
    }
    std::ranges::sort(times);
    double sum = 0;
    for (const double t : times) sum += t;
    std::printf("%zu masks %s: median %.1f us, mean %.1f us, largest %.1f us\n", times.size(), what,
                times[times.size() / 2], sum / static_cast<double>(times.size()), times.back());
  }
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
