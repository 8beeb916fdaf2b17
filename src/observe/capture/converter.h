// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "observe/capture/allocations.h"
#include "observe/capture/cupti_abi.h"
#include "observe/capture/kernel_code.h"
#include "observe/trace/trace.h"

namespace saturate::observe::cupti {

// Whether calls of this name are recorded: those that issue, wait, allocate or load. Queries such
// as cudaGetDevice are made thousands of times a step and say nothing.
bool wanted_call(uint32_t domain, std::string_view name);

// "cudaLaunchKernel_v7000" as "cudaLaunchKernel".
std::string plain_name(std::string_view name);

// How often a call was made in a stretch of time.
struct CallCount {
  uint32_t domain = 0, callback = 0;
  std::string name;
  int64_t count = 0, first_ns = 0, last_ns = 0;

  // Calls a second; 0 when there are too few to estimate.
  double rate() const;
};

// Turns CUPTI's records into those of a trace. Times stay CUPTI's: nanoseconds since 1970.
// Not for use by several threads at once.
class Converter {
 public:
  // `code` says what names of kernels do not; it outlives this.
  Converter(const Api& api, const KernelCode& code, uint32_t process);

  // Adds `record` to `trace`; kinds that are not known are passed over.
  void add(const Activity& record, Trace& trace);

  // After the records of some buffers: adds what only they together say, the samples of memory and
  // what calls waited for.
  void complete(Trace& trace);
  int64_t allocations() const { return allocations_.records(); }  // so far, and releases

  // Only calls and graphs that start in a recorded stretch are added, and waits that one begins in;
  // other calls are only counted. CUPTI hands calls over late, so those of earlier stretches stay
  // wanted. Before the first stretch all are added, or none.
  void nothing_recorded_yet();
  void stretch_begins(int64_t at_ns);
  void stretch_ends(int64_t at_ns);

  // Counts calls that start in a stretch of time, from now on.
  void count_calls(int64_t from_ns, int64_t to_ns);
  const std::vector<CallCount>& counts() const { return counts_; }
  // About what recording those calls and their work cost the host.
  int64_t recording_cost_ns() const;

  // Operations whose times the device had no room for, and so count as lost.
  int64_t untimed() const { return untimed_; }

  // Calls and kernels that carry the number of the one before: those have none in the trace.
  int64_t unnumbered() const { return unnumbered_; }

 private:
  static constexpr uint32_t kUnwanted = UINT32_MAX;
  struct Call {
    uint32_t name = kUnwanted;
    size_t count = 0;    // its place in counts_
    bool waits = false;  // for the device, or may
  };
  Call& call_of(Trace& trace, uint32_t domain, uint32_t callback);
  uint32_t kernel_name(Trace& trace, const char* mangled);
  int64_t numbered(uint32_t correlation, uint32_t& last);
  void kernel(const KernelActivity& k, Trace& trace);
  template <class Copy>
  void copy(const Copy& c, Trace& trace);
  void fill(const FillActivity& f, Trace& trace);
  void graph(const GraphActivity& g, Trace& trace);
  void call(const ApiActivity& a, Trace& trace);
  void overhead(const OverheadActivity& o, Trace& trace);
  void push(Trace& trace, DeviceOp op, uint64_t start, uint64_t end);

  std::string target_of(const SynchronizationActivity& s) const;

  struct Kernel {
    std::string mangled;
    uint32_t name = kUnwanted;
  };

  const Api& api_;
  const KernelCode& code_;
  uint32_t process_;
  int64_t untimed_ = 0, unnumbered_ = 0;
  struct Stretch {
    int64_t from_ns, to_ns;
  };
  bool recorded(int64_t time_ns) const;
  bool resumed_within(int64_t start_ns, int64_t end_ns) const;
  std::vector<Stretch> stretches_;                // the latest
  uint32_t last_kernel_ = 0, last_call_[3] = {};  // numbers; of calls by domain
  std::unordered_map<uint64_t, Call> calls_;      // by domain and callback
  std::vector<CallCount> counts_;
  int64_t count_from_ns_ = 0, count_to_ns_ = 0;
  std::unordered_map<const char*, Kernel> kernels_;
  Allocations allocations_;
  std::unordered_map<uint32_t, SynchronizationActivity> waits_;  // of calls not yet seen, by number
};

}  // namespace saturate::observe::cupti
