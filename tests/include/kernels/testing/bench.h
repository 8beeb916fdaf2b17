// SPDX-License-Identifier: Apache-2.0
// What the bench programs of kernels share.
#pragma once
#include <algorithm>
#include <cstring>
#include <functional>
#include <random>
#include <vector>

#include "runtime/cuda/check.h"
#include "runtime/memory.h"
#include "runtime/stream.h"

namespace saturate::kernels::testing {

// `count` values of bf16: a repeated pattern of normal values, no zeros, no two rows alike.
inline Buffer random_bf16(const Stream& s, int64_t count) {
  static const std::vector<uint16_t> pattern = [] {
    std::mt19937 rng(7);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> p(1048573);  // prime
    for (uint16_t& x : p) {
      const float f = normal(rng);
      uint32_t bits;
      std::memcpy(&bits, &f, 4);
      x = static_cast<uint16_t>(bits >> 16);
    }
    return p;
  }();
  Buffer b(s.device(), static_cast<size_t>(count) * 2);
  size_t done = std::min(b.bytes(), pattern.size() * 2);
  copy_to_device(s, b.data(), pattern.data(), done);
  while (done < b.bytes()) {
    const size_t more = std::min(done, b.bytes() - done);
    copy_on_device(s, b.as<char>() + done, b.data(), more);
    done += more;
  }
  s.synchronize();
  return b;
}

// Microseconds a call of `body(i)` for i in 0 .. chain - 1, which a CUDA graph holds; the graph is
// launched twice between two events, and the median of 15 of these counts.
inline double graph_microseconds(const Context& ctx, int chain,
                                 const std::function<void(int)>& body) {
  constexpr int kLaunches = 2, kWarmUp = 5, kCounted = 15;
  const cudaStream_t s = cuda::stream_of(ctx);
  body(0);  // loads what it needs
  cudaGraph_t graph = nullptr;
  SAT_CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < chain; ++i) body(i);
  SAT_CUDA(cudaStreamEndCapture(s, &graph));
  cudaGraphExec_t exec = nullptr;
  SAT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin = nullptr, end = nullptr;
  SAT_CUDA(cudaEventCreate(&begin));
  SAT_CUDA(cudaEventCreate(&end));
  std::vector<float> times;
  for (int r = 0; r < kWarmUp + kCounted; ++r) {
    SAT_CUDA(cudaEventRecord(begin, s));
    for (int l = 0; l < kLaunches; ++l) SAT_CUDA(cudaGraphLaunch(exec, s));
    SAT_CUDA(cudaEventRecord(end, s));
    SAT_CUDA(cudaEventSynchronize(end));
    float ms = 0;
    SAT_CUDA(cudaEventElapsedTime(&ms, begin, end));
    if (r >= kWarmUp) times.push_back(ms);
  }
  SAT_CUDA(cudaEventDestroy(begin));
  SAT_CUDA(cudaEventDestroy(end));
  SAT_CUDA(cudaGraphExecDestroy(exec));
  SAT_CUDA(cudaGraphDestroy(graph));
  std::nth_element(times.begin(), times.begin() + kCounted / 2, times.end());
  return 1e3 * static_cast<double>(times[kCounted / 2]) / (kLaunches * chain);
}

}  // namespace saturate::kernels::testing
