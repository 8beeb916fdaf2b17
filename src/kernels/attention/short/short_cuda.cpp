// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/short/short.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/attention/impl.h"

namespace saturate::kernels {

void attention_backward_short_cuda(const Context& ctx, const AttentionBackwardArgs& b) {
  using namespace attention;
  const int64_t mean = attention_mean_length(b.forward);
  const auto launch = [&]<class T>() {
    b.forward.head_size == 32 ? launch_short_backward<T, 32>(ctx, b, mean)
                              : launch_short_backward<T, 64>(ctx, b, mean);
  };
  b.forward.dtype == DType::f16 ? launch.operator()<__half>() : launch.operator()<__nv_bfloat16>();
}

}  // namespace saturate::kernels
