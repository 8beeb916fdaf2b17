// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace saturate {

enum class DeviceKind : uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;
  bool is_cuda() const noexcept { return kind == DeviceKind::cuda; }
  friend bool operator==(const Device&, const Device&) = default;
};

struct DeviceInfo {
  std::string name;
  size_t memory_bytes = 0;
  size_t free_bytes = 0;
  int compute_major = 0, compute_minor = 0;  // 0 on the CPU
  int multiprocessors = 0;
};

// What decides which kernels a device can run. Plain data, so that tests may ask for any GPU; zeros
// for the CPU and where there is no such GPU.
struct Capability {
  int major = 0, minor = 0;  // of the compute capability
  int multiprocessors = 0;
  int shared_bytes = 0;      // of a block, at most
  bool tensor_maps = false;  // the driver encodes those of TMA
};
// Read from the driver once for each device. Never throws.
const Capability& capability_of(Device device) noexcept;

// GPUs that a driver offers; 0 without a driver or in a build without CUDA. Never throws.
int cuda_device_count() noexcept;
DeviceInfo device_info(Device device);

// "cpu", "cuda", "cuda:1" or "auto" (the first GPU if there is one). Errors: invalid_argument,
// unsupported (no such GPU; the message says what was found).
Device parse_device(const std::string& text);
std::string to_string(Device device);

// Makes `device` current for the calling thread (cudaSetDevice); nothing on the CPU.
void use_device(Device device);

}  // namespace saturate
