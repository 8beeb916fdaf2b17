// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode/beam_step_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kThreads = 64;
static_assert(kMaxBeam <= kThreads, "a thread has one row");

// One block, one placement.
__global__ void __launch_bounds__(kThreads) beam_place_kernel(BeamPlaceArgs a) {
  const int count = *a.count;
  if (static_cast<int>(blockIdx.x) >= count || threadIdx.x >= a.beam) return;
  place_row<float>(a, a.placements[blockIdx.x], threadIdx.x);
}

}  // namespace

void beam_place_cuda(const Context& ctx, const BeamPlaceArgs& a) {
  beam_place_kernel<<<static_cast<unsigned>(a.most), kThreads, 0, cuda::stream_of(ctx)>>>(a);
  SAT_CUDA_LAUNCHED("beam_place_kernel");
}

}  // namespace saturate::kernels
