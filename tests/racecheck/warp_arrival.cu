// SPDX-License-Identifier: Apache-2.0
// The hand-over of the Hopper kernels, alone: the lanes of a warp write shared memory, meet at
// __syncwarp(), one of them arrives at an mbarrier; another warp waits for that and reads. It is
// ordered (PTX memory model: bar.warp.sync orders the lanes' accesses, mbarrier.arrive releases
// what is ordered before it, try_wait acquires), yet compute-sanitizer of CUDA 13.0 reports
// hazards; with an argument all lanes arrive, and it reports none. Not part of the build:
//   nvcc -arch=sm_90a -lineinfo -o warp_arrival tests/racecheck/warp_arrival.cu
//   compute-sanitizer --tool racecheck ./warp_arrival; compute-sanitizer --tool racecheck
//   ./warp_arrival all
#include <cstdint>
#include <cstdio>
__device__ uint32_t at(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
__device__ void wait(uint32_t b, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred p;\nL: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@!p bra L;\n}" ::
          "r"(b),
      "r"(parity)
      : "memory");
}
__device__ void arrive(uint32_t b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
}
template <bool kAll>
__global__ void hand_over(int* out, int turns) {
  __shared__ int slot[32];
  __shared__ uint64_t full, empty;
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at(&full)), "r"(kAll ? 32 : 1));
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at(&empty)), "r"(kAll ? 32 : 1));
  }
  __syncthreads();
  int sum = 0;
  for (int i = 0; i < turns; ++i) {
    if (threadIdx.x < 32) {
      wait(at(&empty), (i & 1) ^ 1);
      slot[lane] = i * lane;
      __syncwarp();
      if (kAll || lane == 0) arrive(at(&full));
    } else {
      wait(at(&full), i & 1);
      sum += slot[31 - lane];
      __syncwarp();
      if (kAll || lane == 0) arrive(at(&empty));
    }
  }
  if (threadIdx.x >= 32) out[lane] = sum;
}
template <bool kAll>
int run() {
  int* out;
  int host[32], bad = 0;
  cudaMalloc(&out, 128);
  hand_over<kAll><<<1, 64>>>(out, 100);
  cudaMemcpy(host, out, 128, cudaMemcpyDeviceToHost);
  for (int l = 0; l < 32; ++l) bad += host[l] != 4950 * (31 - l);
  printf("%s: %d wrong, %s\n", kAll ? "all lanes arrive" : "one lane arrives", bad,
         cudaGetErrorString(cudaGetLastError()));
  return bad;
}
int main(int n, char**) { return n > 1 ? run<true>() : run<false>(); }
