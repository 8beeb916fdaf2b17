// SPDX-License-Identifier: Apache-2.0
#include "kernels/tune/machine.h"
#include "base/error.h"

namespace saturate::kernels {

TuneMachine tune_machine(Device) {
  throw Error(Errc::unsupported, "tune",
              "this build has no GPU code; build with -DSATURATE_CUDA=ON to tune");
}

}  // namespace saturate::kernels
