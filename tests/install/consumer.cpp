// SPDX-License-Identifier: Apache-2.0
// Uses installed headers and libraries of several layers: a product of two small matrices.
#include <cstdio>
#include <vector>

#include "base/config.h"
#include "base/features.h"
#include "kernels/gemm/matmul.h"

int main() {
  const std::vector<float> a = {1, 2, 3, 4}, b = {5, 6, 7, 8};
  std::vector<float> d(4);
  saturate::kernels::MatmulArgs args;
  args.a = a.data();
  args.b = b.data();
  args.d = d.data();
  args.m = args.n = args.k = args.lda = args.ldb = args.ldd = 2;
  saturate::kernels::matmul(saturate::Context{}, args);
  saturate::RunConfig config;
  saturate::set_key(config, "optimizer.lr=0.5");
  std::printf("saturate %s: %g %g %g %g\n", SATURATE_VERSION, d[0], d[1], d[2], d[3]);
  const bool right = d == std::vector<float>{19, 22, 43, 50} && config.optimizer.lr == 0.5;
  return right ? 0 : 1;
}
