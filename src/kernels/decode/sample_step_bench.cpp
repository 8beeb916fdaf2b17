// SPDX-License-Identifier: Apache-2.0
// Drawing a token for each row: chains in a CUDA graph. One JSON line for a case: microseconds a call,
// the median of 15 graphs. Logits are normal with a deviation of 1 (flat: thousands of tokens have a
// share) or 4 (peaked, as trained models' are).
// usage: saturate_sample_step_bench
#include <fmt/format.h>

#include <string>
#include <vector>

#include "kernels/decode/sample_step_impl.h"
#include "kernels/testing/bench.h"

using namespace saturate;
using namespace saturate::kernels;

namespace {

constexpr int kChain = 16;

void measure(int64_t rows, int64_t vocab, const char* name, SampleSequence wish, int deviation,
             int prompt = 1) {
  const Stream stream(Device{DeviceKind::cuda, 0});
  const Context ctx{stream.device(), stream.native(), nullptr, 0};
  const auto n = static_cast<size_t>(rows);
  Buffer logits = testing::random_bf16(stream, rows * vocab);
  if (deviation == 4) {  // two more in the exponent of a bf16 multiplies it by 4
    std::vector<uint16_t> bits(n * static_cast<size_t>(vocab));
    copy_to_host(stream, bits.data(), logits.data(), logits.bytes());
    stream.synchronize();
    for (uint16_t& b : bits) b = static_cast<uint16_t>(b + (2 << 7));
    copy_to_device(stream, logits.data(), bits.data(), logits.bytes());
    stream.synchronize();
  }
  std::vector<SampleSequence> wishes;
  std::vector<int32_t> starts;
  for (size_t r = 0; r < n; ++r) {
    wish.stream = wish.result = static_cast<int32_t>(r);
    wish.limit = 1 << 20;
    wish.prompt = prompt;
    wishes.push_back(wish);
    starts.push_back(static_cast<int32_t>(r) << 14);
  }
  const auto zeros = [&](size_t count) {
    Buffer b(stream.device(), count * 4);
    fill_bytes(stream, b.data(), 0, b.bytes());
    return b;
  };
  std::vector<int32_t> said(n << 14), at(n, prompt - 1);
  for (size_t i = 0; i < said.size(); ++i) said[i] = static_cast<int32_t>(i * 7919 % 4999);
  const Buffer ids = zeros(n), positions = zeros(n), finished = zeros(n), tokens = zeros(n << 14),
               result = zeros(n << 12), scores = zeros(n << 12), from = zeros(n);
  const Buffer sequences(stream.device(), n * sizeof(SampleSequence));
  copy_to_device(stream, sequences.data(), wishes.data(), sequences.bytes());
  copy_to_device(stream, from.data(), starts.data(), from.bytes());
  copy_to_device(stream, positions.data(), at.data(), positions.bytes());
  copy_to_device(stream, tokens.data(), said.data(), tokens.bytes());
  stream.synchronize();
  const SampleStepArgs args{.logits = logits.data(),
                            .state = {.ids = ids.as<int32_t>(),
                                      .positions = positions.as<int32_t>(),
                                      .finished = finished.as<int32_t>(),
                                      .starts = from.as<int32_t>(),
                                      .sequences = sequences.as<SampleSequence>(),
                                      .tokens = tokens.as<int32_t>()},
                            .result = {.tokens = result.as<int32_t>(),
                                       .log_probabilities = scores.as<float>(),
                                       .stride = 1 << 12},
                            .rows = rows,
                            .vocab = vocab,
                            .ld = vocab,
                            .dtype = DType::bf16};
  const double us =
      testing::graph_microseconds(ctx, kChain, [&](int) { sample_step_cuda(ctx, args); });
  fmt::print(
      "{{\"case\":\"{}\",\"deviation\":{},\"rows\":{},\"vocab\":{},\"tokens\":{},\"us\":{:.2f}}}\n",
      name, deviation, rows, vocab, prompt, us);
  std::fflush(stdout);
}

}  // namespace

int main() {
  struct Case {
    const char* name;
    SampleSequence wish;
  };
  const Case cases[] = {{"greedy", {.temperature = 0.0f}},
                        {"greedy, log-probability", {.temperature = 0.0f, .wants_scores = 1}},
                        {"temperature", {.temperature = 1.0f}},
                        {"top_p", {.temperature = 0.8f, .top_p = 0.95f}},
                        {"top_k", {.temperature = 0.8f, .top_k = 50}},
                        {"top_k, top_p", {.temperature = 0.8f, .top_p = 0.95f, .top_k = 50}},
                        {"min_p", {.temperature = 1.0f, .min_p = 0.05f}}};
  for (const int64_t vocab : {50257, 128256}) {
    for (const int64_t rows : {1, 64}) {
      for (const int deviation : {1, 4}) {
        for (const Case& c : cases) measure(rows, vocab, c.name, c.wish, deviation);
      }
      for (const int tokens : {500, 8000}) {
        measure(rows, vocab, "greedy, repetition penalty",
                {.temperature = 0.0f, .rules = {.repetition_penalty = 1.1f}}, 4, tokens);
        measure(rows, vocab, "greedy, no 4 tokens twice",
                {.temperature = 0.0f, .rules = {.no_repeat_ngram = 4}}, 4, tokens);
      }
    }
  }
  return 0;
}
