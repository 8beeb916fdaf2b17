// SPDX-License-Identifier: Apache-2.0
// What the programs are made of: device memory, kernels of a chosen length, host work.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "lab/marks.h"
#include "lab/program.h"
#include "runtime/stream.h"

namespace saturate::lab {

// Owns device memory or pinned host memory; move only. Errors    out_of_memory, device.
class Buffer {
 public:
  enum class Where : uint8_t { device, pinned };
  Buffer(Where where, size_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&&) = delete;
  void* data() const noexcept { return data_; }
  float* floats() const noexcept { return static_cast<float*>(data_); }
  size_t bytes() const noexcept { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
  Where where_;
};

// x[i] = 0.5 x[i] + 1, 16 times a round, in registers: arithmetic only. A round of a full grid
// takes 0.26 us on an H200: 540,672 threads of 16 operations at 132 x 128 a cycle of 1.98 GHz.
void launch_arithmetic(const Stream& stream, const Buffer& x, int blocks, int rounds);
// y[i] = 0.5 x[i] + 1 over all of x: memory traffic only, twice the bytes of x.
void launch_elementwise(const Stream& stream, const Buffer& x, const Buffer& y);

void copy_to_device(const Stream& stream, const Buffer& to, const void* from, size_t bytes);

// Keeps the calling thread computing for as long as `ns`.
void burn(int64_t ns);

constexpr int kFullGrid = 2112;  // 16 blocks for each of 132 multiprocessors
constexpr int kBlockThreads = 256;
constexpr size_t kGridBytes = sizeof(float) * kFullGrid * kBlockThreads;

// Stream and marks of a program.
struct Rig {
  explicit Rig(Device device) : stream(device), marks(stream) {}
  Stream stream;
  Marks marks;
};

std::unique_ptr<Program> make_launch_loop(Remedy remedy, Device device);
std::unique_ptr<Program> make_slow_loader(Remedy remedy, Device device);
std::unique_ptr<Program> make_pageable_copies(Remedy remedy, Device device);
std::unique_ptr<Program> make_sync_each_step(Remedy remedy, Device device);
std::unique_ptr<Program> make_allocation_each_step(Remedy remedy, Device device);
std::unique_ptr<Program> make_host_work(Remedy remedy, Device device);
std::unique_ptr<Program> make_throttled_pool(Remedy remedy, Device device);
std::unique_ptr<Program> make_two_streams(Remedy remedy, Device device);
std::unique_ptr<Program> make_growing_step(Remedy remedy, Device device);
std::unique_ptr<Program> make_memory_bound(Remedy remedy, Device device);
std::unique_ptr<Program> make_gpu_bound(Remedy remedy, Device device);
// Variants of launch_loop for `saturate lab compare`: kernels ten times as large, a tenth of them.
std::unique_ptr<Program> make_launch_batch(Remedy remedy, Device device);

}  // namespace saturate::lab
