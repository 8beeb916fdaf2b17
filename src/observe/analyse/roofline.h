// SPDX-License-Identifier: Apache-2.0
// How fast a device could be at most, and how near to it a kernel comes.
#pragma once
#include <string_view>

#include "observe/analyse/analysis.h"

namespace saturate::observe {

// As the makers state them, without sparsity: TFLOP/s with fp32 sums, GB/s. 0: the chip has none.
struct DevicePeaks {
  std::string_view name;  // words that the device's name has
  double tensor16, tf32, fp32, tensor8;
  double memory;
  double link;  // to the host, one direction
  double fp64;
};

// Null for a device that is not in the table.
const DevicePeaks* device_peaks(std::string_view device_name);

// TFLOP/s of the fastest unit for those inputs; fp32 goes through TF32 in a kernel that uses
// `tensor_cores`. 0 when not known.
double peak_tflops(const DevicePeaks& peaks, Precision precision, bool tensor_cores);

struct Roofline {
  double tflops = 0, gb_per_s = 0;  // reached; 0 when not known
  double share = 0;                 // of what the roof allows; 0 when not known
  bool compute_bound = false;       // the roof is that of arithmetic, not of memory
};
// `peaks` may be null. Above 1 the bytes did not all come from memory: caches hold what an
// operator before it wrote.
Roofline roofline(const KernelStat& kernel, const DevicePeaks* peaks);

}  // namespace saturate::observe
