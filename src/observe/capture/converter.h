// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "observe/capture/cupti_abi.h"
#include "observe/trace/trace.h"

namespace saturate::observe::cupti {

// Whether calls of this name are recorded: those that issue, wait, allocate or load. Queries such
// as cudaGetDevice are made thousands of times a step and say nothing.
bool wanted_call(uint32_t domain, std::string_view name);

// "cudaLaunchKernel_v7000" as "cudaLaunchKernel".
std::string plain_name(std::string_view name);

// Turns CUPTI's records into those of a trace. Times stay CUPTI's: nanoseconds since 1970.
// Not for use by several threads at once.
class Converter {
 public:
  Converter(const Api& api, uint32_t process);

  // Adds `record` to `trace`; kinds that are not known are passed over.
  void add(const Activity& record, Trace& trace);

  // Operations whose times the device had no room for, and so count as lost.
  int64_t untimed() const { return untimed_; }

 private:
  uint32_t call_name(Trace& trace, uint32_t domain, uint32_t callback);
  uint32_t kernel_name(Trace& trace, const char* mangled);
  void kernel(const KernelActivity& k, Trace& trace);
  template <class Copy>
  void copy(const Copy& c, Trace& trace);
  void fill(const FillActivity& f, Trace& trace);
  void graph(const GraphActivity& g, Trace& trace);
  void call(const ApiActivity& a, Trace& trace);
  void overhead(const OverheadActivity& o, Trace& trace);
  void push(Trace& trace, DeviceOp op, uint64_t start, uint64_t end);

  static constexpr uint32_t kUnwanted = UINT32_MAX;
  struct Kernel {
    std::string mangled;
    uint32_t name = kUnwanted;
  };

  const Api& api_;
  uint32_t process_;
  int64_t untimed_ = 0;
  std::unordered_map<uint64_t, uint32_t> calls_;  // domain and callback to name, 0: unwanted
  std::unordered_map<const char*, Kernel> kernels_;
};

}  // namespace saturate::observe::cupti
