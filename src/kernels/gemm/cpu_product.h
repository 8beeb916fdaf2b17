// SPDX-License-Identifier: Apache-2.0
// What products on the CPU share: how threads divide D, and epilogues behind a product.
#pragma once
#include <functional>

#include "kernels/gemm/matmul_impl.h"

namespace saturate::kernels::cpu_product {

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// Cuts D (m, n) into a grid of blocks, one a thread, and calls block(rows, columns) for each in its
// thread. The grid depends on the number of threads.
void share(const MatmulArgs& x, const std::function<void(Range rows, Range cols)>& block);

// Whether with_epilogue() can do what the product asks for.
Fit epilogue_fits(const MatmulArgs& x) noexcept;

// product(the plain product), and behind it what the elementwise operations would do: bit for bit as
// they do it.
void with_epilogue(const Context& ctx, const MatmulArgs& x,
                   const std::function<void(const MatmulArgs&)>& product);

}  // namespace saturate::kernels::cpu_product
