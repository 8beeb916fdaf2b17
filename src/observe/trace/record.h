// SPDX-License-Identifier: Apache-2.0
// What a capture holds, as flat records: what the device did, what the host asked it to do, and
// what the host was doing otherwise. Times are nanoseconds on one clock of the capture; intervals
// are half open, [start_ns, end_ns). Names, streams and threads are indices into tables of Trace.
#pragma once
#include <cstdint>

namespace saturate::observe {

constexpr int64_t kNoCorrelation = -1;

enum class OpKind : uint8_t {
  kernel,
  copy,
  fill,
  graph,  // a whole graph launch, when its nodes were not recorded
};
enum class CopyKind : uint8_t { unknown, host_to_device, device_to_host, device_to_device, peer };
enum class HostMemory : uint8_t { unknown, pageable, pinned };

// Of CUPTI's number (CUpti_ActivityMemcpyKind), which the exports of Nsight Systems have too, with three more for copies of
// managed memory.
constexpr CopyKind copy_kind_of(int64_t number) {
  using enum CopyKind;
  constexpr CopyKind kKinds[] = {unknown,
                                 host_to_device,
                                 device_to_host,
                                 host_to_device,
                                 device_to_host,
                                 device_to_device,
                                 device_to_device,
                                 device_to_device,
                                 device_to_device,
                                 unknown,
                                 peer,
                                 host_to_device,
                                 device_to_host,
                                 device_to_device};
  return number >= 0 && number < 14 ? kKinds[number] : unknown;
}

// One activity of a device.
struct DeviceOp {
  int64_t start_ns = 0, end_ns = 0;
  int64_t correlation = kNoCorrelation;  // the HostCall of the same process that issued it
  int64_t size = 0;                      // kernel: blocks of its grid, 0 unknown; else bytes
  uint32_t name = 0;
  uint32_t stream = 0;
  uint32_t block_threads = 0;
  OpKind kind = OpKind::kernel;
  CopyKind copy = CopyKind::unknown;
  HostMemory memory = HostMemory::unknown;  // the host's side of a copy
  int64_t operation = -1;                   // the OperatorWork it belongs to; -1: not known
};

// One call of the CUDA runtime or driver. Calls of a thread may nest.
struct HostCall {
  int64_t start_ns = 0, end_ns = 0;
  int64_t correlation = kNoCorrelation;
  uint32_t name = 0;
  uint32_t thread = 0;
};

// What a thread did or was kept from doing, beside CUDA calls.
enum class SpanKind : uint8_t {
  range,     // NVTX or a profiler's annotation; also marks steps by its name
  loader,    // waiting for the next batch of the data loader
  blocked,   // in a system call that waits
  runnable,  // ready to run but not on a core
  gil,       // waiting for the interpreter's lock
  overhead,  // the capturing tool's own work
  lost,      // nothing was captured
  // In a system call that waits, or copies to the page cache; the name says for what.
  file_read,
  file_write,
  network,
  lock,  // of a mutex, whose holder is another thread
};
constexpr SpanKind kLastSpanKind = SpanKind::lock;
// Spans of what keeps a thread from its own code, from samples of it.
constexpr bool is_host_wait(SpanKind kind) {
  return kind == SpanKind::blocked || kind == SpanKind::gil ||
         (kind >= SpanKind::file_read && kind <= SpanKind::lock);
}
struct HostSpan {
  int64_t start_ns = 0, end_ns = 0;
  uint32_t name = 0;
  uint32_t thread = 0;
  SpanKind kind = SpanKind::range;
};

// A frame of a sampled stack, with those that called it. Texts are numbers of names.
constexpr uint32_t kNoStack = UINT32_MAX;
struct StackNode {
  uint32_t caller = kNoStack;  // a node that was added before
  uint32_t function = 0, file = 0;
  uint32_t line = 0;  // 0: not known
  uint32_t text = 0;  // what stands there in the source
  auto operator<=>(const StackNode&) const = default;
};
enum class HostState : uint8_t {
  running,  // or ready to run
  blocked,  // in the kernel
  lock,     // waiting for the interpreter's lock
};
// Samples of a thread that were all alike, taken at even intervals from the first to the last.
struct HostSample {
  int64_t start_ns = 0, end_ns = 0;  // of the first and of the last
  uint32_t count = 0;
  uint32_t thread = 0;
  uint32_t stack = kNoStack;         // the innermost frame
  uint32_t wait = 0;                 // text: what it was blocked in
  uint32_t holder = 0;               // thread that held the lock,
  uint32_t holder_stack = kNoStack;  // and where; kNoStack: not known
  HostState state = HostState::running;
};

// What a process's allocator held of a device's memory at a moment, after a change; bytes.
struct MemorySample {
  int64_t time_ns = 0;
  int64_t allocated = 0;  // in use
  int64_t reserved = 0;   // taken from the driver
  uint32_t device = 0;
  auto operator<=>(const MemorySample&) const = default;
};

// Of the inputs of an operator's products.
enum class Precision : uint8_t { unknown, f64, f32, f16, f8 };

// What an operator of the framework has to do at least, from the shapes of its inputs.
struct OperatorWork {
  int64_t operation = -1;
  double flops = 0, bytes = 0;
  Precision precision = Precision::unknown;  // of products; unknown for what only moves memory
  auto operator<=>(const OperatorWork&) const = default;
};

// What the source says of the operation of a collective, beside its kernel's name.
struct CollectiveNote {
  int64_t correlation = kNoCorrelation;  // as the operation's
  uint32_t group = 0;                    // text: the same on all ranks of a communicator
  uint32_t what = 0;                     // text: "allreduce", ...
  int64_t bytes = 0;                     // of the larger side on this rank
};

struct StreamKey {
  uint32_t process = 0, device = 0, context = 0;
  uint64_t stream = 0;
  auto operator<=>(const StreamKey&) const = default;
};
struct ThreadKey {
  uint32_t process = 0;
  uint64_t thread = 0;
  auto operator<=>(const ThreadKey&) const = default;
};

}  // namespace saturate::observe
