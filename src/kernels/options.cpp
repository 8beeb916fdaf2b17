// SPDX-License-Identifier: Apache-2.0
#include "kernels/options.h"

#include <cstdlib>

namespace saturate::kernels {

KernelOptions kernel_options_from_environment() {
  const char* const matmul = std::getenv("SATURATE_MATMUL");
  KernelOptions options;
  if (matmul != nullptr) options.matmul = matmul;
  return options;
}

}  // namespace saturate::kernels
