// SPDX-License-Identifier: Apache-2.0
// Prints median milliseconds and TFLOP/s of attention on the first GPU (causal counted at half).
// A program of its own: link with the kernels, runtime and base libraries.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/philox.h"
#include "kernels/attention/hopper/backward.h"
#include "kernels/attention/impl.h"
#include "runtime/device.h"
#include "runtime/memory.h"
#include "runtime/stream.h"

namespace saturate::kernels {
namespace {

struct BenchCase {
  const char* name;
  int64_t sequences, heads, length, head_size;
  bool causal;
  DType dtype;
  float dropout;
};

constexpr BenchCase kCases[] = {
    {"translation 784x8x32x64", 784, 8, 32, 64, false, DType::bf16, 0.0f},
    {"translation 784x8x32x64", 784, 8, 32, 64, false, DType::bf16, 0.1f},
    {"translation 256x8x64x64", 256, 8, 64, 64, false, DType::bf16, 0.0f},
    {"translation 128x8x128x64", 128, 8, 128, 64, false, DType::bf16, 0.0f},
    {"translation 128x8x128x64", 128, 8, 128, 64, false, DType::bf16, 0.1f},
    {"GPT-2 32x12x1024x64", 32, 12, 1024, 64, true, DType::bf16, 0.0f},
    {"GPT-2 32x12x1024x64", 32, 12, 1024, 64, true, DType::bf16, 0.1f},
    {"GPT-2 32x12x1024x64", 32, 12, 1024, 64, true, DType::f16, 0.0f},
    {"study 4x16x1024x64", 4, 16, 1024, 64, false, DType::f16, 0.0f},
    {"long 8x16x2048x128", 8, 16, 2048, 128, false, DType::bf16, 0.0f},
    {"long 8x16x2048x128", 8, 16, 2048, 128, true, DType::bf16, 0.0f},
    {"tokens 32x16x512x128", 32, 16, 512, 128, false, DType::bf16, 0.0f},
    {"tokens 32x16x512x128", 32, 16, 512, 128, true, DType::bf16, 0.0f},
    {"tokens 16x16x1024x128", 16, 16, 1024, 128, false, DType::bf16, 0.0f},
    {"tokens 16x16x1024x128", 16, 16, 1024, 128, true, DType::bf16, 0.0f},
    {"tokens 16x16x1024x128", 16, 16, 1024, 128, false, DType::bf16, 0.1f},
    {"tokens 16x16x1024x128", 16, 16, 1024, 128, true, DType::bf16, 0.1f},
    {"tokens 4x16x4096x128", 4, 16, 4096, 128, true, DType::bf16, 0.0f},
    {"tokens 2x16x8192x128", 2, 16, 8192, 128, false, DType::bf16, 0.0f},
    {"tokens 2x16x8192x128", 2, 16, 8192, 128, true, DType::bf16, 0.0f},
    {"tokens 1x16x16384x128", 1, 16, 16384, 128, true, DType::bf16, 0.0f},
    {"tokens 32x32x512x64", 32, 32, 512, 64, true, DType::bf16, 0.0f},
    {"tokens 8x32x2048x64", 8, 32, 2048, 64, false, DType::bf16, 0.0f},
    {"tokens 8x32x2048x64", 8, 32, 2048, 64, false, DType::bf16, 0.1f},
    {"tokens 2x32x8192x64", 2, 32, 8192, 64, false, DType::bf16, 0.0f},
    {"tokens 2x32x8192x64", 2, 32, 8192, 64, true, DType::bf16, 0.0f},
    {"small heads 784x8x32x32", 784, 8, 32, 32, false, DType::bf16, 0.0f},
    {"fp32 4x16x1024x64", 4, 16, 1024, 64, false, DType::f32, 0.0f},
    {"fp32 translation 784x8x32x64", 784, 8, 32, 64, false, DType::f32, 0.0f},
};

constexpr int kSets = 3;  // buffers are rotated so that L2 does not hold the next call's inputs
constexpr int kCalls = 12, kWarmup = 2, kRuns = 11;

struct Set {
  Buffer qkv, o, lse, d_o, d_qkv, delta, workspace;
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// chosen: only the backward pass, by that implementation.
void measure(const BenchCase& c, Device device, const Stream& stream, bool forward, bool backward,
             const Impl<AttentionBackwardArgs>* chosen = nullptr) {
  const int64_t rows = c.sequences * c.length, width = c.heads * c.head_size;
  const size_t size = size_of(c.dtype);
  // Uniform in [-1, 1): zeros would run faster than real data.
  const auto random = [&](int64_t n, uint64_t key) {
    std::vector<unsigned char> host(static_cast<size_t>(n) * size);
    constexpr int64_t kPeriod = 1 << 20;  // then the same again
    for (int64_t i = 0; i < std::min(n, kPeriod); ++i) {
      const float x =
          static_cast<float>(random_block(key, 0, 0, static_cast<uint64_t>(i)).x[0]) * 0x1p-31f - 1;
      uint32_t bits = 0;
      std::memcpy(&bits, &x, 4);
      uint32_t stored = bits;
      if (c.dtype == DType::bf16) stored = bits >> 16;
      if (c.dtype == DType::f16)  // truncated; below 2^-14 becomes zero
        stored = (bits >> 16 & 0x8000u) | ((bits & 0x7FFFFFFFu) < (113u << 23)
                                               ? 0u
                                               : ((bits & 0x7FFFFFFFu) - (112u << 23)) >> 13);
      std::memcpy(host.data() + static_cast<size_t>(i) * size, &stored, size);
    }
    for (int64_t i = kPeriod; i < n; i += kPeriod)
      std::memcpy(host.data() + static_cast<size_t>(i) * size, host.data(),
                  static_cast<size_t>(std::min(kPeriod, n - i)) * size);
    Buffer b(device, host.size());
    copy_to_device(stream, b.data(), host.data(), host.size());
    stream.synchronize();
    return b;
  };
  AttentionArgs sizes;
  sizes.dtype = c.dtype, sizes.heads = c.heads, sizes.head_size = c.head_size;
  sizes.q_rows = rows, sizes.sequences = c.sequences;
  sizes.k_rows = rows, sizes.dropout = c.dropout;
  const auto workspace = static_cast<size_t>(attention_backward_hopper_workspace(sizes));
  std::vector<Set> sets;
  for (int s = 0; s < kSets; ++s)
    sets.push_back(
        {random(rows * width * 3, 1), Buffer(device, static_cast<size_t>(rows * width) * size),
         Buffer(device, static_cast<size_t>(rows * c.heads) * 4), random(rows * width, 2),
         Buffer(device, static_cast<size_t>(rows * width * 3) * size),
         Buffer(device, static_cast<size_t>(rows * c.heads) * 4), Buffer(device, workspace)});
  std::vector<int32_t> cu;
  for (int64_t s = 0; s <= c.sequences; ++s) cu.push_back(static_cast<int32_t>(s * c.length));
  const uint64_t state[2] = {1, 2};
  const Buffer offsets(device, cu.size() * 4), rng(device, sizeof state);
  copy_to_device(stream, offsets.data(), cu.data(), cu.size() * 4);
  copy_to_device(stream, rng.data(), state, sizeof state);
  stream.synchronize();

  const Context ctx{device, stream.native(), nullptr, 0};
  const auto args_of = [&](const Set& s) {
    AttentionBackwardArgs b;
    AttentionArgs& a = b.forward;
    const auto at = [&](const Buffer& x, int64_t part) {
      return x.as<char>() + static_cast<size_t>(part * width) * size;
    };
    a.q = at(s.qkv, 0), a.k = at(s.qkv, 1), a.v = at(s.qkv, 2), a.o = s.o.data(),
    a.lse = s.lse.data();
    a.cu_q = a.cu_k = offsets.as<int32_t>();
    a.sequences = c.sequences, a.heads = a.kv_heads = c.heads, a.head_size = c.head_size;
    a.q_rows = a.k_rows = rows, a.max_q = a.max_k = c.length;
    a.q_stride = a.k_stride = a.v_stride = 3 * width, a.o_stride = width;
    a.dtype = c.dtype, a.causal = c.causal, a.dropout = c.dropout;
    a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(c.head_size)));
    a.rng = {rng.as<uint64_t>(), 3};
    b.d_o = s.d_o.data(), b.delta = s.delta.data();
    b.d_q = at(s.d_qkv, 0), b.d_k = at(s.d_qkv, 1), b.d_v = at(s.d_qkv, 2);
    b.d_q_stride = b.d_k_stride = b.d_v_stride = 3 * width;
    b.workspace = s.workspace.data();
    b.workspace_bytes = static_cast<int64_t>(s.workspace.bytes());
    return b;
  };
  // As in training: inside a graph, so that no launch is waited for.
  for (const Set& s : sets) {  // also what the first call alone does
    attention_forward(ctx, args_of(s).forward);
    attention_backward(ctx, args_of(s));
  }
  const auto time_of = [&](const auto& call) {
    const Graph graph = Graph::capture(stream, [&] {
      for (int n = 0; n < kCalls; ++n) call(args_of(sets[static_cast<size_t>(n % kSets)]));
    });
    std::vector<double> ms;
    Event begin(device, Event::Timing::on), end(device, Event::Timing::on);
    for (int run = 0; run < kWarmup + kRuns; ++run) {
      begin.record(stream);
      graph.launch(stream);
      end.record(stream);
      end.synchronize();
      if (run >= kWarmup) ms.push_back(Event::elapsed_ms(begin, end) / kCalls);
    }
    return median(ms);
  };
  const double flop = 4.0 * static_cast<double>(rows * c.length * width) * (c.causal ? 0.5 : 1.0);
  if (chosen != nullptr) {
    const Fit fit = chosen->fits(ctx, args_of(sets[0]));
    if (!fit) return static_cast<void>(std::printf("%-30s %s\n", c.name, fit.reason));
    const double ms = time_of([&](const AttentionBackwardArgs& x) { chosen->launch(ctx, x); });
    std::printf("%s %s %s %s drop %.1f  backward %8.4f ms %6.1f TFLOP/s\n", chosen->name, c.name,
                name_of(c.dtype), c.causal ? "causal" : "full  ", static_cast<double>(c.dropout),
                ms, 2.5 * flop / ms * 1e-9);
    return;
  }
  const auto run_forward = [&](const AttentionBackwardArgs& b) {
    attention_forward(ctx, b.forward);
  };
  const auto run_backward = [&](const AttentionBackwardArgs& b) { attention_backward(ctx, b); };
  const double f = forward ? time_of(run_forward) : NAN, b = backward ? time_of(run_backward) : NAN;
  std::printf(
      "%-30s %s %s drop %.1f  forward %8.4f ms %6.1f TFLOP/s  backward %8.4f ms %6.1f TFLOP/s\n",
      c.name, name_of(c.dtype), c.causal ? "causal" : "full  ", static_cast<double>(c.dropout), f,
      flop / f * 1e-9, b, 2.5 * flop / b * 1e-9);
  std::fflush(stdout);
}

}  // namespace
}  // namespace saturate::kernels

// saturate_attention_bench [TEXT [forward|backward]]
//     the cases of the list whose names contain the text, both directions or one
// saturate_attention_bench IMPLEMENTATION S H L D causal|full[:DROPOUT] bf16|f16 [S H L D ...]
//     the backward pass alone, by the implementation of that name
int main(int count, char** arguments) {
  using namespace saturate;
  const std::string_view first = count > 1 ? arguments[1] : "";
  const std::string_view direction = count > 2 ? arguments[2] : "";
  if (cuda_device_count() == 0) return std::puts("no GPU"), 0;
  const Device device{DeviceKind::cuda, 0};
  use_device(device);
  const Stream stream(device);
  std::printf("%s\n", device_info(device).name.c_str());
  const kernels::Impl<kernels::AttentionBackwardArgs>* chosen = nullptr;
  for (const auto& impl : kernels::attention_backward_impls())
    if (first == impl.name) chosen = &impl;
  if (chosen == nullptr) {
    for (const kernels::BenchCase& c : kernels::kCases)
      if (std::string_view(c.name).find(first) != std::string_view::npos)
        kernels::measure(c, device, stream, direction != "backward", direction != "forward");
    return 0;
  }
  if (count % 6 != 2) {
    std::puts(
        "usage: saturate_attention_bench [IMPLEMENTATION S H L D causal|full[:DROPOUT] bf16|f16 "
        "...]");
    return 2;
  }
  for (int i = 2; i < count; i += 6) {
    const std::string name = std::string(arguments[i]) + "x" + arguments[i + 1] + "x" +
                             arguments[i + 2] + "x" + arguments[i + 3];
    const std::string_view order = arguments[i + 4];
    const char* const colon = std::strchr(arguments[i + 4], ':');
    kernels::measure({name.c_str(), std::atoll(arguments[i]), std::atoll(arguments[i + 1]),
                      std::atoll(arguments[i + 2]), std::atoll(arguments[i + 3]),
                      order.substr(0, order.find(':')) == "causal",
                      std::string_view(arguments[i + 5]) == "f16" ? DType::f16 : DType::bf16,
                      colon == nullptr ? 0.0f : std::strtof(colon + 1, nullptr)},
                     device, stream, false, true, chosen);
  }
}
