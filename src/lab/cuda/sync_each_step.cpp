// SPDX-License-Identifier: Apache-2.0
// A step is 40 kernels of about 60 us with 20 us of host work around each; the host waits for each.
#include "lab/cuda/rig.h"

namespace saturate::lab {
namespace {

class SyncEachStep final : public Program {
 public:
  SyncEachStep(Remedy remedy, Device device)
      : rig_(device), remedy_(remedy), x_(Buffer::Where::device, kGridBytes) {}

  void step() override { enqueue(remedy_); }

  // The host is ahead of the device, and nothing waits.
  bool alone() override {
    enqueue(Remedy::applied);
    return true;
  }

 private:
  void enqueue(Remedy remedy) {
    for (int i = 0; i < 40; ++i) {
      launch_arithmetic(rig_.stream, x_, kFullGrid, 230);
      if (remedy == Remedy::none) rig_.stream.synchronize();
      burn(20'000);
    }
  }

  Rig rig_;
  Remedy remedy_;
  Buffer x_;
};

}  // namespace

std::unique_ptr<Program> make_sync_each_step(Remedy remedy, Device device) {
  return std::make_unique<SyncEachStep>(remedy, device);
}

}  // namespace saturate::lab
