// SPDX-License-Identifier: Apache-2.0
// Hopper's instructions for barriers, TMA, clusters and the tensor cores, one function each.
// Semantics: PTX ISA 9.0, sections "mbarrier", "cp.async.bulk.tensor", "wgmma" and "setmaxnreg".
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace saturate::kernels::wgmma {

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// --- barriers in shared memory; addresses are shared::cta

__device__ inline void barrier_init(uint32_t bar, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals));
}
// Makes the initialised barriers visible to TMA and to the cluster.
__device__ inline void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void barrier_expect(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
               : "memory");
}
__device__ inline void barrier_wait(uint32_t bar, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n}" ::"r"(bar),
      "r"(parity)
      : "memory");
}
// Arrives at the same barrier of block `rank` of the cluster. Without ".release.cluster", which
// would cost a fence of all memory: what it announces are reads of the tensor cores that have
// ended.
__device__ inline void barrier_arrive_at(uint32_t bar, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\n mapa.shared::cluster.u32 remote, %0, %1;\n"
      " mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(bar),
      "r"(rank)
      : "memory");
}
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
__device__ inline uint32_t cluster_rank() {
  uint32_t r;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
  return r;
}
// Until the kernels before this one in the stream have ended and their results are visible: what a
// kernel that was launched early (programmatic stream serialisation) does before it touches memory.
__device__ inline void await_previous_kernel() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
// Barrier `id` (1..15) among `threads` threads of the block.
__device__ inline void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// --- TMA

// Box at (x, y) of the map to shared memory; its bytes count at `bar`. With kMulticast it arrives
// at the same place and barrier of both blocks of the cluster.
template <bool kMulticast>
__device__ inline void load_box(uint32_t to, const CUtensorMap& map, uint32_t bar, int x, int y) {
  if constexpr (kMulticast) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::"
        "cluster "
        "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
        "l"(&map), "r"(bar), "r"(x), "r"(y), "h"(static_cast<uint16_t>(3))
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%3, %4}], "
        "[%2];" ::"r"(to),
        "l"(&map), "r"(bar), "r"(x), "r"(y)
        : "memory");
  }
}
__device__ inline void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
// What this thread has stored in shared memory is there for the tensor cores behind the next barrier.
__device__ inline void publish_stores() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// --- the tensor cores

__device__ inline void mma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void mma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kLeft>
__device__ inline void mma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
}

// The sums are final from here: no read of them may move up over the wait.
template <int kCount>
__device__ inline void settle(float (&d)[kCount]) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) asm volatile("" : "+f"(d[j])::"memory");
}

// Descriptor of an operand in shared memory with the 128-byte swizzle, as two words, so that a step
// through memory is one addition to the low one (addresses stay below 2^18 bytes, so it never
// carries). `leading` and `stride` in bytes: K-major: stride between groups of 8 rows (leading is
// ignored); MN-major: stride between groups of 8 values of k, leading between blocks of 64 rows or
// columns. The tile must be aligned to 1024.
__device__ inline uint32_t descriptor_low(uint32_t address, uint32_t leading) {
  return (address & 0x3FFFF) >> 4 | (leading >> 4) << 16;  // above: the block's rank in its cluster
}
__device__ inline uint64_t descriptor(uint32_t low, uint32_t stride) {
  return static_cast<uint64_t>(stride >> 4 | 1u << 30) << 32 | low;
}

}  // namespace saturate::kernels::wgmma
