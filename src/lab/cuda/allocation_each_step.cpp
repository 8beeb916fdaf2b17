// SPDX-License-Identifier: Apache-2.0
// A step frees its buffer of 1 GiB, allocates it anew and computes about 2 ms.
#include <optional>

#include "lab/cuda/rig.h"

namespace saturate::lab {
namespace {

constexpr size_t kBytes = size_t{1} << 30;

class AllocationEachStep final : public Program {
 public:
  AllocationEachStep(Remedy remedy, Device device)
      : rig_(device),
        remedy_(remedy),
        x_(Buffer::Where::device, kGridBytes),
        buffer_(std::in_place, Buffer::Where::device, kBytes) {}

  void step() override {
    if (remedy_ == Remedy::none) {
      rig_.marks.begin();
      buffer_.reset();
      buffer_.emplace(Buffer::Where::device, kBytes);
      rig_.marks.end();
    }
    for (int i = 0; i < 20; ++i) launch_arithmetic(rig_.stream, x_, kFullGrid, 400);
  }

  Marks* marks() override { return &rig_.marks; }

 private:
  Rig rig_;
  Remedy remedy_;
  Buffer x_;
  std::optional<Buffer> buffer_;
};

}  // namespace

std::unique_ptr<Program> make_allocation_each_step(Remedy remedy, Device device) {
  return std::make_unique<AllocationEachStep>(remedy, device);
}

}  // namespace saturate::lab
