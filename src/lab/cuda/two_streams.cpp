// SPDX-License-Identifier: Apache-2.0
// Two streams in turns: each half waits for the other's last kernel, so they never overlap, though
// neither fills the device.
#include "lab/cuda/rig.h"

namespace saturate::lab {
namespace {

constexpr int kHalfGrid = kFullGrid / 32;

class TwoStreams final : public Program {
 public:
  TwoStreams(Remedy remedy, Device device)
      : rig_(device),
        other_(device),
        remedy_(remedy),
        x_(Buffer::Where::device, kGridBytes),
        y_(Buffer::Where::device, kGridBytes),
        mine_(device),
        theirs_(device) {}

  void step() override { enqueue(remedy_); }

  bool alone() override {
    enqueue(Remedy::applied);
    return true;
  }

 private:
  void enqueue(Remedy remedy) {
    for (int i = 0; i < 5; ++i) {
      launch_arithmetic(rig_.stream, x_, kHalfGrid, 8000);
      if (remedy == Remedy::none) wait(rig_.stream, mine_, other_);
      launch_arithmetic(other_, y_, kHalfGrid, 8000);
      if (remedy == Remedy::none) wait(other_, theirs_, rig_.stream);
    }
  }

  static void wait(const Stream& of, Event& event, const Stream& by) {
    event.record(of);
    event.wait_on(by);
  }

  Rig rig_;
  Stream other_;
  Remedy remedy_;
  Buffer x_, y_;
  Event mine_, theirs_;
};

}  // namespace

std::unique_ptr<Program> make_two_streams(Remedy remedy, Device device) {
  return std::make_unique<TwoStreams>(remedy, device);
}

}  // namespace saturate::lab
