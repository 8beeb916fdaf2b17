// SPDX-License-Identifier: Apache-2.0
// The matrix product on Hopper's tensor cores, for the three products of a linear layer in 16 bits.
#pragma once
#include <string>
#include <vector>

#include "kernels/gemm/matmul.h"

namespace saturate::kernels {

// How a product is cut. `shape` is an index of wgmma::Shape; `band` pairs of tile rows are walked
// together; the sum is cut into `splits` parts, added in a fixed order.
struct WgmmaPlan {
  int shape = 0, splits = 1, band = 4;
  friend bool operator==(const WgmmaPlan&, const WgmmaPlan&) = default;
};
std::string name_of(const WgmmaPlan& plan);  // "cooperative 128x256, band 4, 2 splits"
// The plan of that name; shape -1 for any other text.
WgmmaPlan wgmma_plan_named(const std::string& name);

// Refuses other devices than compute capability 9.0, types, layouts and alignments that TMA cannot
// read, with the reason.
Fit matmul_wgmma_cuda_fits(const Context& ctx, const MatmulArgs& args) noexcept;
// Runs the plan that plan_of() chooses: a function of the shape alone, so results repeat bit for
// bit.
void matmul_wgmma_cuda(const Context& ctx, const MatmulArgs& args);

// All plans worth measuring for a problem that fits, the chosen one first.
std::vector<WgmmaPlan> wgmma_plans(const Context& ctx, const MatmulArgs& args);
// Whether the plan can run this problem: its partial sums must have room in the workspace.
Fit wgmma_plan_fits(const Context& ctx, const MatmulArgs& args, const WgmmaPlan& plan) noexcept;
// Bytes of workspace: the partial sums of all splits but the first.
size_t wgmma_workspace(const MatmulArgs& args, const WgmmaPlan& plan) noexcept;
double wgmma_predicted_ms(const Context& ctx, const MatmulArgs& args, const WgmmaPlan& plan);
void matmul_wgmma_run(const Context& ctx, const MatmulArgs& args, const WgmmaPlan& plan);

}  // namespace saturate::kernels
