// SPDX-License-Identifier: Apache-2.0
// What tuned tables of every kind share: the machine they hold for, where their files lie, and which
// sizes count as one shape.
#pragma once
#include <cmath>
#include <cstdint>
#include <string>

#include "runtime/device.h"

namespace saturate::kernels {

// What a measurement holds for. A table of another machine is stale.
struct TuneMachine {
  std::string gpu;        // "NVIDIA H200"
  std::string compute;    // "9.0"
  std::string driver;     // "580.159.04", or CUDA's number where the kernel module does not say
  std::string libraries;  // "cuBLASLt 13.0.2, kernels 2"
  friend bool operator==(const TuneMachine&, const TuneMachine&) = default;
};
// Errors: unsupported for a CPU and in a build without CUDA.
TuneMachine tune_machine(Device device);

// Half powers of two: round(2 log2(size)); 0 for sizes up to 1.
inline int64_t shape_class(int64_t size) noexcept {
  return size <= 1 ? 0 : std::llround(2.0 * std::log2(static_cast<double>(size)));
}

}  // namespace saturate::kernels
