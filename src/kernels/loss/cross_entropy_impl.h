// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/loss/cross_entropy.h"

namespace saturate::kernels {

// What loss_statistics writes of a row.
template <class T>
struct RowStatistics {
  T top, sum, target, total;
};

// Columns of this rank that are classes.
constexpr int64_t classes_among(int64_t ld, int64_t first_class, int64_t vocab) {
  const int64_t left = vocab - first_class;
  return left < 0 ? 0 : left < ld ? left : ld;
}

void cross_entropy_cpu(const Context& ctx, const CrossEntropyArgs& args);
void cross_entropy_cuda(const Context& ctx, const CrossEntropyArgs& args);

void loss_statistics_cpu(const Context& ctx, const LossStatisticsArgs& args);
void loss_statistics_cuda(const Context& ctx, const LossStatisticsArgs& args);

void cross_entropy_finish_cpu(const Context& ctx, const CrossEntropyFinishArgs& args);
void cross_entropy_finish_cuda(const Context& ctx, const CrossEntropyFinishArgs& args);

void loss_totals_cpu(const Context& ctx, const LossTotalsArgs& args);
void loss_totals_cuda(const Context& ctx, const LossTotalsArgs& args);

}  // namespace saturate::kernels
