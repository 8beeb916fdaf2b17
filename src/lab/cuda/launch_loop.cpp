// SPDX-License-Identifier: Apache-2.0
// A step is 200 kernels of one unit, in one of three forms: launched one by one, captured in graphs
// of 50, or ten times as large and a tenth as many. `alone` is the device's part: one graph of all.
#include <functional>
#include <vector>

#include "lab/cuda/rig.h"

namespace saturate::lab {
namespace {

constexpr int kKernels = 200, kChunk = 50;
constexpr int kBlocks = 132, kRounds = 4;  // about 1.5 us on an H200: less than a launch takes

class LaunchLoop final : public Program {
 public:
  LaunchLoop(Remedy remedy, int batch, Device device)
      : rig_(device), batch_(batch), x_(Buffer::Where::device, kGridBytes) {
    if (remedy == Remedy::applied) chunk_ = Graph::capture(rig_.stream, [&] { enqueue(kChunk); });
    whole_ = Graph::capture(rig_.stream, [&] { enqueue(kKernels / batch_); });
  }

  void step() override {
    if (!chunk_) return enqueue(kKernels / batch_);
    for (int i = 0; i < kKernels; i += kChunk) chunk_.launch(rig_.stream);
  }

  bool alone() override {
    whole_.launch(rig_.stream);
    return true;
  }

 private:
  void enqueue(int kernels) {
    for (int i = 0; i < kernels; ++i) launch_arithmetic(rig_.stream, x_, kBlocks * batch_, kRounds);
  }

  Rig rig_;
  int batch_;
  Buffer x_;
  Graph chunk_, whole_;
};

}  // namespace

std::unique_ptr<Program> make_launch_loop(Remedy remedy, Device device) {
  return std::make_unique<LaunchLoop>(remedy, 1, device);
}

std::unique_ptr<Program> make_launch_batch(Remedy remedy, Device device) {
  return std::make_unique<LaunchLoop>(remedy, 10, device);
}

}  // namespace saturate::lab
