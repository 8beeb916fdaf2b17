// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/kernel_words.h"

#include <fmt/format.h>

#include <algorithm>

#include "observe/analyse/names.h"

namespace saturate::observe {
namespace {

// Of the time, what `part` takes of each kernel's nanoseconds.
template <class Part>
double share_of(const DeviceAnalysis& d, const Part& part) {
  int64_t ns = 0, kernels = 0, others = 0;
  for (const KernelStat& k : d.kernels) {
    kernels += k.total_ns;
    ns += part(k);
  }
  for (const Leaf leaf : {Leaf::graph, Leaf::copy_in_pageable, Leaf::copy_in,
                          Leaf::copy_out_pageable, Leaf::copy_out, Leaf::copy_device, Leaf::fill})
    others += d.budget[leaf];
  return static_cast<double>(ns) / static_cast<double>(std::max<int64_t>(1, kernels)) *
         static_cast<double>(d.budget.busy_ns() - others) /
         static_cast<double>(std::max<int64_t>(1, d.budget.total_ns()));
}

}  // namespace

double kernels_share(const DeviceAnalysis& d, bool (*which)(std::string_view)) {
  return share_of(d, [which](const KernelStat& k) { return which(k.name) ? k.total_ns : 0; });
}

SlowWords slow_words(const DeviceAnalysis& d) {
  const auto slow_ns = [](const KernelStat& k) {
    return is_slow(k.name) ? k.total_ns : k.serial_ns;
  };
  const KernelStat* slowest = nullptr;
  for (const KernelStat& k : d.kernels)
    if (slow_ns(k) > (slowest == nullptr ? 0 : slow_ns(*slowest))) slowest = &k;
  SlowWords w;
  w.evidence = fmt::format("{:.1f}% of the time is kernels that others leave behind",
                           100 * share_of(d, slow_ns));
  if (slowest == nullptr) return w;
  if (const SlowKernel* named = slow_kernel(slowest->name)) {
    w.evidence += fmt::format(": {}", named->what);
    w.action = named->instead;
    w.caveat = named->caveat;
    return w;
  }
  w.evidence += fmt::format(
      ": {} has {} {} for {} multiprocessors", slowest->name.substr(0, 60), slowest->serial_blocks,
      slowest->serial_blocks == 1 ? "block" : "blocks", d.info.multiprocessors);
  w.action =
      "give every multiprocessor a part: reduce along a contiguous axis (copy or transpose first), "
      "whole arrays one by one, or parts first and then what they gave; a product with a vector of "
      "ones sums as well";
  w.caveat = "sums in another order differ in their last bits";
  return w;
}

}  // namespace saturate::observe
