// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/tune/sgemm_jit.h"
#include "kernels/gemm/tune/table.h"

namespace saturate::kernels {
namespace {

[[noreturn]] void no_gpu_code() {
  throw Error(Errc::unsupported, "tune",
              "this build has no GPU code; build with -DSATURATE_CUDA=ON to tune");
}

}  // namespace

TuneMachine tune_machine(Device) { no_gpu_code(); }
ChipLimits chip_limits(Device) { no_gpu_code(); }

}  // namespace saturate::kernels
