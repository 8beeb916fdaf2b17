// SPDX-License-Identifier: Apache-2.0
// The build has no CUDA or found no CUTLASS.
#include "base/error.h"
#include "kernels/attention/cute/cute.h"

namespace saturate::kernels {

Fit attention_cute_is_built() noexcept {
  return {"not built: needs CUDA and the headers of CUTLASS (cmake -DSATURATE_CUTLASS=FOLDER)"};
}
void attention_forward_cute_d64(const Context&, const AttentionArgs&) {
  SAT_ASSERT(false);  // `fits` has refused
}
void attention_forward_cute_d128(const Context&, const AttentionArgs&) { SAT_ASSERT(false); }

}  // namespace saturate::kernels
