// SPDX-License-Identifier: Apache-2.0
// Tensor-core tiles against the fastest of cuBLASLt's proposals, interleaved, as JSON
// lines: median milliseconds, TFLOP/s and the ratio. A program of its own: link with the kernels,
// runtime and base libraries.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "kernels/gemm/matmul_impl.h"
#include "kernels/gemm/mma/mma_gemm.cuh"
#include "runtime/memory.h"
#include "runtime/stream.h"

namespace saturate::kernels {
namespace {

// Uniform in [-1, 1): zeros would run faster than real data.
__global__ void fill_kernel(__nv_bfloat16* to, int64_t count, uint32_t seed) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    uint32_t h = static_cast<uint32_t>(i) * 0x9E3779B1u + seed;
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h = (h ^ h >> 13) * 0xC2B2AE35u;
    to[i] = __float2bfloat16(static_cast<float>((h ^ h >> 16) >> 8) * 0x1p-23f - 1.0f);
  }
}

struct Bench {
  Bench() : device{DeviceKind::cuda, 0}, stream(device), workspace(device, kWorkspaceBytes) {
    SAT_CUDA(cudaEventCreate(&begin));
    SAT_CUDA(cudaEventCreate(&end));
  }
  Context ctx() const { return {device, stream.native(), workspace.data(), workspace.bytes()}; }
  Buffer random(int64_t count, uint32_t seed) const {
    Buffer b(device, static_cast<size_t>(count) * 2);
    fill_kernel<<<1024, 256, 0, cuda::stream_of(ctx())>>>(b.as<__nv_bfloat16>(), count, seed);
    return b;
  }
  float ms(const std::function<void()>& body) const {
    SAT_CUDA(cudaEventRecord(begin, cuda::stream_of(ctx())));
    body();
    SAT_CUDA(cudaEventRecord(end, cuda::stream_of(ctx())));
    SAT_CUDA(cudaEventSynchronize(end));
    float t = 0.0f;
    SAT_CUDA(cudaEventElapsedTime(&t, begin, end));
    return t;
  }
  // Medians of rounds that take the bodies in turn, after a second's third of warming up.
  std::vector<float> medians(const std::vector<std::function<void(int)>>& bodies) const {
    int set = 0;
    for (float warm = 0.0f; warm < 300.0f;)
      for (const auto& body : bodies) warm += ms([&] { body(set++); });
    constexpr int kRounds = 15;
    std::vector<std::vector<float>> t(bodies.size());
    for (int r = 0; r < kRounds; ++r)
      for (size_t i = 0; i < bodies.size(); ++i) t[i].push_back(ms([&] { bodies[i](set++); }));
    std::vector<float> m;
    for (auto& v : t) {
      std::nth_element(v.begin(), v.begin() + kRounds / 2, v.end());
      m.push_back(v[kRounds / 2]);
    }
    return m;
  }
  Device device;
  Stream stream;
  Buffer workspace;
  cudaEvent_t begin = nullptr, end = nullptr;
};

// Two sets of operands, used in turn; each is far larger than L2 or the two together are.
struct Operands {
  Operands(const Bench& b, int64_t m, int64_t n, int64_t k, Transpose ta, Transpose tb) {
    for (uint32_t s = 0; s < 2; ++s) {
      memory.push_back(b.random(m * k, s + 1));
      memory.push_back(b.random(k * n, s + 11));
      memory.push_back(b.random(m * n, s + 21));
      memory.push_back(b.random(m * n, s + 31));
    }
    bias = b.random(n, 41);
    args = {.m = m, .n = n, .k = k, .ta = ta, .tb = tb};
    args.lda = ta == Transpose::yes ? m : k;
    args.ldb = tb == Transpose::yes ? k : n;
    args.ldc = args.ldd = n;
    args.ab_type = args.d_type = DType::bf16;
  }
  MatmulArgs at(int set) const {
    MatmulArgs x = args;
    const auto* from = &memory[static_cast<size_t>(set % 2 * 4)];
    x.a = from[0].data(), x.b = from[1].data(), x.d = x.d == nullptr ? from[2].data() : x.d;
    x.c = x.d;
    if (x.beta != 0.0f) x.c = from[3].data();
    if (x.epilogue.kind != EpilogueKind::plain) x.epilogue.aux = from[3].data();
    return x;
  }
  std::vector<Buffer> memory;
  Buffer bias;
  MatmulArgs args;
};

void report(const char* what, const MatmulArgs& x, const char* peer, float ours, float theirs) {
  const double flops =
      2.0 * static_cast<double>(x.m) * static_cast<double>(x.n) * static_cast<double>(x.k);
  std::printf(
      "{\"case\":\"%s\",\"layout\":\"%c%c\",\"m\":%lld,\"n\":%lld,\"k\":%lld,\"peer\":\"%s\","
      "\"ms\":%.4f,"
      "\"tflops\":%.1f,\"peer_ms\":%.4f,\"peer_tflops\":%.1f,\"ratio\":%.3f}\n",
      what, x.ta == Transpose::yes ? 'T' : 'N', x.tb == Transpose::yes ? 'T' : 'N',
      static_cast<long long>(x.m), static_cast<long long>(x.n), static_cast<long long>(x.k), peer,
      ours, flops / ours * 1e-9, theirs, flops / theirs * 1e-9, theirs / ours);
  std::fflush(stdout);
}

void against_cublaslt(const Bench& b, int64_t m, int64_t n, int64_t k, Transpose ta, Transpose tb) {
  const Operands o(b, m, n, k, ta, tb);
  const std::string fastest = matmul_cublaslt_fastest(b.ctx(), o.at(0));
  const auto t = b.medians({[&](int s) { matmul_mma_cuda(b.ctx(), o.at(s)); },
                            [&](int s) { matmul_cublaslt_configured(b.ctx(), o.at(s), fastest); }});
  report("bf16", o.args, "cublaslt", t[0], t[1]);
}

template <class Tile, mma::Storage kStorageB>
void tile(const Bench& b, const char* name, int64_t m, int64_t n, int64_t k) {
  constexpr auto kA = mma::Storage::by_depth;
  const Operands o(b, m, n, k, Transpose::no, kStorageB == kA ? Transpose::yes : Transpose::no);
  mma::Plan p;
  p.tiles_m = static_cast<int>((m + Tile::kM - 1) / Tile::kM);
  p.tiles_n = static_cast<int>((n + Tile::kN - 1) / Tile::kN);
  p.split_depth = static_cast<int>(k);
  const auto t =
      b.medians({[&](int s) {
                   mma::launch_tile<__nv_bfloat16, Tile, kA, kStorageB, mma::Loads::async>(
                       b.ctx(), o.at(s), p);
                 },
                 [&](int s) { matmul_mma_cuda(b.ctx(), o.at(s)); }});
  report(name, o.args, "this path's own choice", t[0], t[1]);
}

void epilogue(const Bench& b, const char* name, bool bias, float beta, EpilogueKind kind) {
  const Operands plain(b, 16384, 4096, 1024, Transpose::no, Transpose::yes);
  Operands fused(b, 16384, 4096, 1024, Transpose::no, Transpose::yes);
  fused.args.beta = beta;
  fused.args.bias = bias ? fused.bias.data() : nullptr;
  fused.args.epilogue.kind = kind;
  fused.args.epilogue.activation = ActivationKind::gelu_tanh;
  fused.args.epilogue.ld_aux = fused.args.ldd;
  const auto t = b.medians({[&](int s) { matmul_mma_cuda(b.ctx(), fused.at(s)); },
                            [&](int s) { matmul_mma_cuda(b.ctx(), plain.at(s)); }});
  report(name, fused.args, "the plain product", t[0], t[1]);
}

}  // namespace
}  // namespace saturate::kernels

int main(int argc, char** argv) {
  using namespace saturate::kernels;
  const std::string only = argc > 1 ? argv[1] : "";
  constexpr Transpose kN = Transpose::no, kT = Transpose::yes;
  const Bench b;
  if (only.empty() || only == "epilogues") {
    epilogue(b, "bias", true, 0.0f, EpilogueKind::plain);
    epilogue(b, "bias, residual", true, 1.0f, EpilogueKind::plain);
    epilogue(b, "bias, GELU, kept", true, 0.0f, EpilogueKind::activation);
    epilogue(b, "GELU derivative", false, 0.0f, EpilogueKind::derivative);
  }
  if (only.empty() || only == "tiles") {
    using mma::MmaTile;
    constexpr auto kRows = mma::Storage::by_depth;
    for (const int64_t k : {1024, 4096}) {
      const int64_t n = k == 1024 ? 3072 : 1024;
      tile<MmaTile<128, 128, 32, 2, 2, 4, 2>, kRows>(b, "128x128x32, 4 stages", 16384, n, k);
      tile<MmaTile<128, 128, 64, 2, 2, 3, 2>, kRows>(b, "128x128x64, 3 stages", 16384, n, k);
      tile<MmaTile<128, 256, 32, 2, 4, 4, 1>, kRows>(b, "128x256x32, 4 stages", 16384, n, k);
      tile<MmaTile<256, 128, 32, 4, 2, 4, 1>, kRows>(b, "256x128x32, 4 stages", 16384, n, k);
      tile<MmaTile<128, 128, 32, 2, 4, 4, 2>, kRows>(b, "128x128x32, 8 warps", 16384, n, k);
    }
  }
  if (!only.empty() && only != "shapes") return 0;
  constexpr int64_t kShapes[][3] = {{16384, 3072, 1024}, {16384, 4096, 1024}, {16384, 1024, 4096},
                                    {32768, 768, 3072},  {32768, 3072, 768},  {32768, 50304, 768},
                                    {25088, 512, 2048},  {25088, 2048, 512},  {25088, 32000, 512}};
  for (const auto& [m, n, k] : kShapes) {
    against_cublaslt(b, m, n, k, kN, kT);  // forward
    against_cublaslt(b, m, k, n, kN, kN);  // input gradient
    against_cublaslt(b, n, k, m, kT, kN);  // weight gradient
  }
  for (const int64_t n : {512, 1024, 2048, 4096, 8192}) {
    against_cublaslt(b, n, n, n, kN, kT);
    against_cublaslt(b, n, n, n, kN, kN);
    against_cublaslt(b, n, n, n, kT, kN);
  }
  against_cublaslt(b, 256, 256, 16384, kT, kN);
  return 0;
}
