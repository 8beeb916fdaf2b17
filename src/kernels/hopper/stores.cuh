// SPDX-License-Identifier: Apache-2.0
// TMA from shared memory to memory. Semantics: PTX ISA 9.0, "cp.async.bulk.tensor" and "cp.async.bulk.wait_group".
#pragma once
#include <cuda.h>

#include <cstdint>

namespace saturate::kernels::wgmma {

// The box of the map at (x, y) from shared memory; what lies outside of the tensor is left out. One of this thread's
// stores.
__device__ __forceinline__ void store_box(const CUtensorMap& map, uint32_t from, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(
          &map),
      "r"(x), "r"(y), "r"(from)
      : "memory");
}
__device__ __forceinline__ void commit_stores() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Until shared memory has been read.
__device__ __forceinline__ void await_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

}  // namespace saturate::kernels::wgmma
