// SPDX-License-Identifier: Apache-2.0
// Rates of kernels and copies against what the device could do, in the reports.
#pragma once
#include <optional>
#include <string>

#include "observe/analyse/roofline.h"
#include "observe/report/diagnosis.h"

namespace saturate::observe {

// "612 TFLOP/s" or "3920 GB/s", by the roof it is nearer to; empty where the capture does not say.
std::string kernel_speed(const KernelStat& kernel, const DevicePeaks* peaks);
// "612 TFLOP/s, 62% of its roof"; "-" where the capture does not say.
std::string kernel_rate(const KernelStat& kernel, const DevicePeaks* peaks);
// Why there are no rates or no shares, with the remedy; empty when there are.
std::string roofline_note(const Diagnosis& diagnosis, const DeviceAnalysis& device);

// Of a copy: the link's to or from the host, half of the memory's on the device; 0 when not known.
double copy_peak(CopyKind kind, const DevicePeaks* peaks);

// A watched run as a whole, from what its GPU counted while it ran. Upper estimates: a tensor core
// that is active need not multiply in every cycle, and bytes need not have been the least.
struct RunRate {
  std::string device;
  double tflops = 0, gb_per_s = 0;
};
std::optional<RunRate> run_rate(const Counters& counters);

// A section with the picture, or empty: each kernel's operations a byte against its TFLOP/s, under
// the roofs of the device.
std::string roofline_html(const Diagnosis& diagnosis);

}  // namespace saturate::observe
