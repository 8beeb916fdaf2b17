// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <chrono>
#include <cstdint>
#include <limits>

#include "base/dtype.h"
#include "kernels/options.h"
#include "runtime/context.h"
#include "runtime/memory.h"

namespace saturate::train {

// Uniform values in [-1, 1) in `type`, repeated after the first 1,048,573: zeros would run faster than
// real data. Synchronises.
Buffer random_buffer(const Context& ctx, const Stream& stream, int64_t count, DType type,
                     uint64_t key);

// Best rate of a large matrix product in `dtype` on this device, flop/s: the ceiling that FLOP
// utilisation is a share of. Takes about 0.02 s on a GPU, 0.3 s on a CPU. Synchronises.
double matmul_ceiling(Device device, DType dtype, const kernels::KernelOptions& options);

// Rates between two progress lines, from what the device reported and the host waited.
class Throughput {
 public:
  using Clock = std::chrono::steady_clock;
  // Without a ceiling (0) no utilisation is told.
  explicit Throughput(double ceiling_flops) : ceiling_(ceiling_flops), start_(Clock::now()) {}

  void add_batch(double source_tokens, double target_tokens, double flops) {
    source_ += source_tokens;
    target_ += target_tokens;
    flops_ += flops;
  }
  void add_wait(double seconds) { wait_ += seconds; }
  // Time that belongs to no step (validation, checkpoint): not counted.
  void pause() { pause_ = Clock::now(); }
  void resume() { start_ += Clock::now() - pause_; }

  struct Rates {
    double seconds = 0, target_tokens_per_s = 0, data_wait = 0;
    double flop_utilisation = std::numeric_limits<double>::quiet_NaN();
  };
  Rates take() {
    const Clock::time_point now = Clock::now();
    Rates r;
    r.seconds = std::chrono::duration<double>(now - start_).count();
    if (r.seconds > 0) {
      r.target_tokens_per_s = target_ / r.seconds;
      r.data_wait = wait_ / r.seconds;
      if (ceiling_ > 0) r.flop_utilisation = flops_ / r.seconds / ceiling_;
    }
    source_ = target_ = flops_ = wait_ = 0;
    start_ = now;
    return r;
  }

 private:
  double ceiling_;
  Clock::time_point start_, pause_{};
  double source_ = 0, target_ = 0, flops_ = 0, wait_ = 0;
};

}  // namespace saturate::train
