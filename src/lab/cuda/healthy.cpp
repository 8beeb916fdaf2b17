// SPDX-License-Identifier: Apache-2.0
// Programs with nothing to win outside their kernels.
#include "lab/cuda/rig.h"

namespace saturate::lab {
namespace {

class MemoryBound final : public Program {
 public:
  explicit MemoryBound(Device device)
      : rig_(device), x_(Buffer::Where::device, kBytes), y_(Buffer::Where::device, kBytes) {}
  void step() override {
    for (int i = 0; i < 10; ++i) launch_elementwise(rig_.stream, x_, y_);
  }

 private:
  static constexpr size_t kBytes = size_t{512} << 20;
  Rig rig_;
  Buffer x_, y_;
};

class GpuBound final : public Program {
 public:
  explicit GpuBound(Device device) : rig_(device), x_(Buffer::Where::device, kGridBytes) {}
  void step() override {
    for (int i = 0; i < 10; ++i) launch_arithmetic(rig_.stream, x_, kFullGrid, 5000);
  }

 private:
  Rig rig_;
  Buffer x_;
};

}  // namespace

std::unique_ptr<Program> make_memory_bound(Remedy, Device device) {
  return std::make_unique<MemoryBound>(device);
}

std::unique_ptr<Program> make_gpu_bound(Remedy, Device device) {
  return std::make_unique<GpuBound>(device);
}

}  // namespace saturate::lab
