// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/tune/sgemm_jit.h"

namespace saturate::kernels {

ChipLimits chip_limits(Device) {
  throw Error(Errc::unsupported, "tune",
              "this build has no GPU code; build with -DSATURATE_CUDA=ON to tune");
}

}  // namespace saturate::kernels
