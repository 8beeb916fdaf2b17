// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

namespace saturate::kernels {

// Bytes of shared memory of the tiled rung: `stages` tiles of A (bk rows of bm, padded by 4 floats)
// and of B (bk rows of bn). The tuner asks the driver for them, sgemm_tiled.cuh lays them out.
constexpr int64_t sgemm_tiled_shared_bytes(int bm, int bn, int bk, int stages) noexcept {
  return int64_t{4} * stages * (bm + 4 + bn) * bk;
}

}  // namespace saturate::kernels
