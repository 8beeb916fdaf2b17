// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/roofline.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

#include "observe/analyse/names.h"

namespace saturate::observe {
namespace {

// From NVIDIA's data sheets of each product and, for GeForce, the architecture white papers
// (Turing, GA102, Ada), at boost clock. Longer names first: "H100 PCIe" is an H100 as well. The
// link is PCIe 3, 4 or 5 with 16 lanes (15.75, 31.5, 63 GB/s), 8 lanes on the RTX 2050. float64 where
// chips have tensor cores for it is with these; chips for graphics have 1 unit for 32 (Turing) or 64 of
// float32.
constexpr std::array kPeaks = {
    DevicePeaks{"V100 PCIE", 112, 0, 14, 0, 900, 15.75, 7},
    DevicePeaks{"V100", 125, 0, 15.7, 0, 900, 15.75, 7.8},
    DevicePeaks{"T4", 65, 0, 8.1, 0, 320, 15.75, 0.25},
    DevicePeaks{"A100 80GB PCIE", 312, 156, 19.5, 0, 1935, 31.5, 19.5},
    DevicePeaks{"A100 SXM4 80GB", 312, 156, 19.5, 0, 2039, 31.5, 19.5},
    DevicePeaks{"A100", 312, 156, 19.5, 0, 1555, 31.5, 19.5},
    DevicePeaks{"A10", 125, 62.5, 31.2, 0, 600, 31.5, 0.49},
    DevicePeaks{"L40S", 362, 183, 91.6, 733, 864, 31.5, 1.43},
    DevicePeaks{"L4", 121, 60, 30.3, 242, 300, 31.5, 0.47},
    DevicePeaks{"H100 PCIE", 756, 378, 51, 1513, 2000, 63, 51},
    DevicePeaks{"H100 NVL", 835, 417, 60, 1671, 3900, 63, 60},
    DevicePeaks{"H100", 989, 494.7, 66.9, 1979, 3350, 63, 66.9},
    DevicePeaks{"H200 NVL", 835, 417, 60, 1671, 4800, 63, 60},
    DevicePeaks{"H200", 989, 494.7, 66.9, 1979, 4800, 63, 66.9},
    DevicePeaks{"B200", 2250, 1125, 75, 4500, 8000, 63, 37},
    DevicePeaks{"RTX 3090", 71, 35.6, 35.6, 0, 936, 31.5, 0.56},
    DevicePeaks{"RTX 4090", 165.2, 82.6, 82.6, 330.3, 1008, 31.5, 1.29},
    DevicePeaks{"GTX 1650", 0, 0, 2.98, 0, 192, 15.75, 0.093},
    DevicePeaks{"RTX 2050", 24.6, 12.3, 6.1, 0, 112, 15.75, 0.095},
};

// Words in capitals with one blank around each: "Tesla V100-SXM2-16GB" is " TESLA V100 SXM2 16GB ".
std::string words(std::string_view text) {
  std::string out = " ";
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)))
      out += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    else if (out.back() != ' ')
      out += ' ';
  }
  if (out.back() != ' ') out += ' ';
  return out;
}

}  // namespace

const DevicePeaks* device_peaks(std::string_view device_name) {
  const std::string device = words(device_name);
  for (const DevicePeaks& peaks : kPeaks) {
    const std::string name = words(peaks.name);
    const size_t at = device.find(name);
    // Of GeForce cards "Ti" and "Laptop GPU" are other chips.
    const bool whole = !name.starts_with(" RTX") && !name.starts_with(" GTX");
    if (at != std::string::npos && (whole || at + name.size() == device.size())) return &peaks;
  }
  return nullptr;
}

double peak_tflops(const DevicePeaks& peaks, Precision precision, bool tensor_cores) {
  switch (precision) {
    case Precision::f16:
      return std::max(peaks.tensor16, peaks.fp32);
    case Precision::f8:
      return peaks.tensor8;
    case Precision::f32:
      return tensor_cores && peaks.tf32 > 0 ? peaks.tf32 : peaks.fp32;
    case Precision::unknown:  // one operation an element
      return peaks.fp32;
    case Precision::f64:
      return 0;
  }
  return 0;
}

Roofline roofline(const KernelStat& k, const DevicePeaks* peaks) {
  Roofline r;
  if (k.work_ns <= 0) return r;
  const auto ns = static_cast<double>(k.work_ns);
  r.tflops = k.flops / ns * 1e-3;
  r.gb_per_s = k.bytes / ns;
  if (peaks == nullptr) return r;
  const double peak =
      peak_tflops(*peaks, k.precision, classify_kernel(k.name) == KernelClass::tensor);
  if (peak <= 0 && k.flops > 0) return r;
  const double arithmetic = k.flops > 0 ? r.tflops / peak : 0, memory = r.gb_per_s / peaks->memory;
  r.share = std::max(arithmetic, memory);
  r.compute_bound = arithmetic > memory;
  return r;
}

}  // namespace saturate::observe
