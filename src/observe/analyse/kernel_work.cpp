// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/kernel_work.h"

#include <algorithm>

namespace saturate::observe {

KernelWork::KernelWork(const Trace& trace, BusyLeaves& leaves) : trace_(trace), leaves_(leaves) {
  if (trace.work.empty()) return;
  for (const DeviceOp& op : trace.ops) {
    if (op.kind != OpKind::kernel || op.operation < 0) continue;
    Kernels& k = kernels_[op.operation];
    k.all_ns += op.end_ns - op.start_ns;
    if (is_matrix(op)) k.matrix_ns += op.end_ns - op.start_ns;
  }
}

bool KernelWork::is_matrix(const DeviceOp& op) const {
  const KernelClass kind = leaves_.kind(op.name);
  return kind == KernelClass::tensor || kind == KernelClass::matrix;
}

void KernelWork::add(const DeviceOp& op, KernelStat& sums) const {
  if (kernels_.empty() || op.operation < 0) return;
  const auto w = std::partition_point(
      trace_.work.begin(), trace_.work.end(),
      [&](const OperatorWork& other) { return other.operation < op.operation; });
  const auto group = kernels_.find(op.operation);
  if (w == trace_.work.end() || w->operation != op.operation || group == kernels_.end()) return;
  const bool product = w->precision != Precision::unknown && group->second.matrix_ns > 0;
  if (product && !is_matrix(op)) return;
  const int64_t ns = op.end_ns - op.start_ns,
                of_ns = product ? group->second.matrix_ns : group->second.all_ns;
  if (ns <= 0 || of_ns <= 0) return;
  const double share = static_cast<double>(ns) / static_cast<double>(of_ns);
  sums.flops += w->flops * share;
  sums.bytes += w->bytes * share;
  sums.work_ns += ns;
  sums.precision = w->precision;
}

}  // namespace saturate::observe
