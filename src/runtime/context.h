// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>

#include "runtime/device.h"

namespace saturate {

// What every kernel launch borrows: where to run, in which order, and scratch that is free for the
// duration of one launch (launches of one stream follow each other, so they share it).
struct Context {
  Device device;
  void* stream = nullptr;  // cudaStream_t; null on the CPU
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  // Null: that of `device`. Tests ask for other GPUs.
  const Capability* capability = nullptr;
};

inline const Capability& capability_of(const Context& ctx) noexcept {
  return ctx.capability != nullptr ? *ctx.capability : capability_of(ctx.device);
}

// 32 MiB: what cuBLASLt asks for on Hopper (cuBLAS documentation, "cublasSetWorkspace").
constexpr size_t kWorkspaceBytes = size_t{32} << 20;

}  // namespace saturate
