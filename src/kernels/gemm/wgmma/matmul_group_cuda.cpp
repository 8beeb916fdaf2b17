// SPDX-License-Identifier: Apache-2.0
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <vector>

#include "kernels/gemm/wgmma/matmul_group.h"
#include "kernels/gemm/wgmma/wgmma_args.h"
#include "kernels/gemm/wgmma/wgmma_group.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {

using wgmma::kGroupTileM;
using wgmma::kGroupTileN;
using wgmma::kTileK;

static_assert(2 * kGroupTileM == kMatmulGroupUnit && kGroupTileN == kMatmulGroupUnit);
static_assert(wgmma::kMostInGroup == kMostInMatmulGroup);

void matmul_group_cuda(const Context& ctx, std::span<const MatmulArgs> products) {
  std::vector<const MatmulArgs*> order;
  for (const MatmulArgs& x : products)
    if (x.m > 0 && x.n > 0) order.push_back(&x);
  if (order.empty()) return;
  std::stable_sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->k > b->k; });
  wgmma::Group group{};
  for (const MatmulArgs* x : order) {
    wgmma::Problem& p = group.product[group.count];
    p = wgmma::problem_of(*x, kGroupTileM, kGroupTileN, kTileK, 1, 8);
    if (p.c == nullptr) {
      p.c = p.out;
      p.ldc = p.ldd;
    }
    p.a = wgmma::map_of(x->a, x->ab_type, x->k, x->m, x->lda, kTileK);
    p.b = wgmma::map_of(x->b, x->ab_type, x->k, x->n, x->ldb, kTileK / 2);
    group.column_sum[group.count] = x->epilogue.column_sum;
    group.adds[group.count] = x->epilogue.add_to_column_sum;
    group.first[group.count + 1] = group.first[group.count] + p.units;
    ++group.count;
  }
  const int blocks = std::min(wgmma::blocks_of(ctx), 2 * group.first[group.count]);
  const auto launch = products.front().ab_type == DType::bf16 ? wgmma::launch_group<__nv_bfloat16>
                                                              : wgmma::launch_group<__half>;
  SAT_CUDA(launch(group, blocks, cuda::stream_of(ctx)));
}

}  // namespace saturate::kernels
