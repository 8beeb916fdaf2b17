// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <unordered_map>

#include "observe/analyse/analysis.h"
#include "observe/analyse/attribute.h"

namespace saturate::observe {

// What each kernel had to do, by the operators of a sorted trace that hold shapes. An operator's
// work belongs to its matrix kernels, where it is a product and has any, else to all its kernels;
// among several it goes by their time.
class KernelWork {
 public:
  KernelWork(const Trace& trace, BusyLeaves& leaves);
  // Adds the work of a kernel's launch to the sums of its name.
  void add(const DeviceOp& op, KernelStat& sums) const;

 private:
  struct Kernels {
    int64_t all_ns = 0, matrix_ns = 0;
  };
  bool is_matrix(const DeviceOp& op) const;

  const Trace& trace_;
  BusyLeaves& leaves_;
  std::unordered_map<int64_t, Kernels> kernels_;  // by operation
};

}  // namespace saturate::observe
