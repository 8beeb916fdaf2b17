// SPDX-License-Identifier: Apache-2.0
// What elementwise.cpp shares with the implementations.
#pragma once
#include "kernels/elementwise/elementwise.h"

namespace saturate::kernels {

// Groups of rows summed by themselves in the first stage of column_sum; partial is (groups, cols).
// Constants, so that sums do not depend on the number of threads or multiprocessors.
constexpr int64_t kColumnSumCpuGroups = 32;
constexpr int64_t kColumnSumCudaGroups = 264;

void add_cpu(const Context& ctx, const AddArgs& args);
void soft_cap_cpu(const Context& ctx, const SoftCapArgs& args);
void cast_cpu(const Context& ctx, const CastArgs& args);
void column_sum_cpu(const Context& ctx, const ColumnSumArgs& args);

void add_cuda(const Context& ctx, const AddArgs& args);
void soft_cap_cuda(const Context& ctx, const SoftCapArgs& args);
void cast_cuda(const Context& ctx, const CastArgs& args);
void column_sum_cuda(const Context& ctx, const ColumnSumArgs& args);

}  // namespace saturate::kernels
