// SPDX-License-Identifier: Apache-2.0
// The choices of kernels that were measured on a device, as Context::tuning carries them.
#pragma once
#include "kernels/attention/tune/table.h"
#include "kernels/gemm/tune/table.h"

namespace saturate::kernels {

// Plain data: const use from several threads is safe. Outlives every Context that names it.
struct Tuning {
  GemmTable gemm;
  AttentionTable attention;
};

}  // namespace saturate::kernels
