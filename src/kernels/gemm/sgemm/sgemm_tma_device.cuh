// SPDX-License-Identifier: Apache-2.0
// One instruction each: barriers in shared memory, TMA, clusters. sm_90 and later.
#pragma once
#include <cuda.h>

#include <cstdint>

namespace saturate::kernels::tma {

__device__ __forceinline__ uint32_t address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

__device__ __forceinline__ void init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address(barrier)), "r"(arrivals)
               : "memory");
}
// Orders init() before what TMA does to the barrier.
__device__ __forceinline__ void fence_init() {
  asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async;" ::: "memory");
}
// One arrival, and `bytes` to come from TMA.
__device__ __forceinline__ void expect(uint64_t* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(address(barrier)),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}
// Until the phase with this parity is over.
__device__ __forceinline__ void wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@done bra over;\n"
      "bra again;\n"
      "over:\n}" ::"r"(address(barrier)),
      "r"(parity)
      : "memory");
}
// The box of `map` at column x of row y.
__device__ __forceinline__ void copy(uint32_t to, const CUtensorMap* map, uint64_t* barrier, int x,
                                     int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(x), "r"(y), "r"(address(barrier))
      : "memory");
}

// volatile: stays behind the wait() before it.
__device__ __forceinline__ void load4(float* v, uint32_t from) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "r"(from));
}
__device__ __forceinline__ void store4(uint32_t to, const float* v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v[0]), "f"(v[1]),
               "f"(v[2]), "f"(v[3])
               : "memory");
}
__device__ __forceinline__ void store(uint32_t to, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory");
}

// Everybody in the cluster is here, and sees what the others wrote before.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
// Four floats at the same place in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ void cluster_load4(float* v, uint32_t from, int rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(from), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "r"(there)
               : "memory");
}

}  // namespace saturate::kernels::tma
