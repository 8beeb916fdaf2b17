// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "observe/capture/cupti_abi.h"
#include "tests/capture/fake_cuda.h"

namespace cupti = saturate::observe::cupti;

namespace {

constexpr std::array kRuntimeNames = {"",
                                      "cudaLaunchKernel_v7000",
                                      "cudaDeviceSynchronize_v3020",
                                      "cudaMemcpyAsync_v3020",
                                      "cudaGetDevice_v3020",
                                      "cudaGraphLaunch_v10000",
                                      "cudaStreamSynchronize_v3020",
                                      "cudaMalloc_v3020",
                                      "cudaFree_v3020",
                                      "cudaProfilerStop_v4000"};
constexpr int64_t kQueueNs = 100'000'000;  // of work that the device holds before launches wait
constexpr uint32_t kUnheardOf = 4711;      // a kind that comes with others, of a later version
constexpr int kInvalid = 1, kNoMore = 12;

// As large as the records of CUPTI 13, so that readers must step by its sizes.
constexpr size_t kKernelSize = 216, kCopySize = 96, kApiSize = 40, kGraphSize = 56,
                 kDeviceSize = 184, kMemorySize = 128, kSynchronizationSize = 56;

size_t size_of(uint32_t kind) {
  switch (kind) {
    case cupti::kConcurrentKernel:
      return kKernelSize;
    case cupti::kMemcpy:
      return kCopySize;
    case cupti::kRuntime:
      return kApiSize;
    case cupti::kGraphTrace:
      return kGraphSize;
    case cupti::kDevice:
      return kDeviceSize;
    case cupti::kMemory2:
      return kMemorySize;
    case cupti::kSynchronization:
      return kSynchronizationSize;
    case kUnheardOf:
      return kMemorySize;
    default:
      return 0;
  }
}

int64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// The host busy for so long, to the microsecond; longer waits sleep as a real call would.
void spend(int64_t ns) {
  for (const int64_t until = now_ns() + ns; now_ns() < until;) {
  }
}
void sleep_until(int64_t time_ns) {
  while (now_ns() < time_ns - 200'000) usleep(50);
  spend(time_ns - now_ns());
}

// Recursive: NVIDIA's CUPTI, too, may be called from its callbacks.
std::map<uint64_t, std::pair<int64_t, bool>> held;  // by address: bytes, pooled
uint64_t next_address = 0x7f0000000000;
int64_t pool_size = 0;
std::recursive_mutex mutex;
std::set<uint32_t> kinds;
std::set<uint32_t> runtime_calls;
cupti::BufferRequested requested = nullptr;
cupti::BufferCompleted completed = nullptr;
// A buffer of the client, whose records have their places from when the work is issued.
struct Filling {
  struct Record {
    size_t at;
    int64_t complete_ns;
  };
  uint8_t* data;
  size_t size, used = 0;
  std::vector<Record> records;
};
std::deque<Filling> buffers;  // the last is being filled
int64_t device_free_ns = 0, launches = 0;
uint32_t correlation = 0;
bool calls_were_on = false, counting = true;

// NVIDIA's CUPTI stops to number what happens when the last call is switched off, for good.
uint32_t next_correlation() {
  const bool on = kinds.contains(cupti::kRuntime) || !runtime_calls.empty();
  if (calls_were_on && !on) counting = false;
  calls_were_on = on;
  return counting ? ++correlation : correlation;
}

// Hands back, in order, the buffers in which all is complete; `forced`: all, and what is not complete
// has no times then and comes no more.
void deliver(bool forced) {
  const int64_t now = now_ns();
  while (!buffers.empty()) {
    Filling& b = buffers.front();
    const auto complete = [&](const Filling::Record& r) { return r.complete_ns <= now; };
    if (!forced && !std::all_of(b.records.begin(), b.records.end(), complete)) return;
    for (const Filling::Record& r : b.records) {
      if (complete(r)) continue;
      const bool graph = *reinterpret_cast<const uint32_t*>(b.data + r.at) == cupti::kGraphTrace;
      std::memset(b.data + r.at +
                      (graph ? offsetof(cupti::GraphActivity, start)
                             : offsetof(cupti::KernelActivity, start)),
                  0, 2 * sizeof(uint64_t));
    }
    const Filling done = b;
    buffers.pop_front();
    completed(nullptr, 0, done.data, done.size, done.used);
  }
}

template <class Activity>
void record(const Activity& activity, int64_t complete_ns) {
  if (requested == nullptr) return;
  const size_t size = size_of(activity.kind);
  if (buffers.empty() || buffers.back().used + size > buffers.back().size) {
    uint8_t* data = nullptr;
    size_t bytes = 0, most = 0;
    requested(&data, &bytes, &most);
    if (data == nullptr) std::abort();  // as older versions of CUPTI
    std::memset(data, 0, bytes);
    buffers.push_back({data, bytes, 0, {}});
  }
  Filling& b = buffers.back();
  std::memcpy(b.data + b.used, &activity, std::min(size, sizeof activity));
  b.records.push_back({b.used, complete_ns});
  b.used += size;
}

void record_call(uint32_t callback, int64_t start, int64_t end, uint32_t id) {
  if (!kinds.contains(cupti::kRuntime) && !runtime_calls.contains(callback)) return;
  cupti::ApiActivity a{};
  a.kind = cupti::kRuntime;
  a.callback = callback;
  a.start = static_cast<uint64_t>(start);
  a.end = static_cast<uint64_t>(end);
  a.process = static_cast<uint32_t>(getpid());
  a.thread = static_cast<uint32_t>(gettid());
  a.correlation = id;
  record(a, end);
}

// What recording a launch costs the host, as FAKE_CUPTI_COST_NS says.
void pay_for_recording() {
  static const int64_t cost = [] {
    const char* text = std::getenv("FAKE_CUPTI_COST_NS");
    return text == nullptr ? 0 : std::strtoll(text, nullptr, 10);
  }();
  if (cost > 0 && kinds.contains(cupti::kConcurrentKernel)) spend(cost);
}

// When the device does something that is issued now: start and end.
std::pair<int64_t, int64_t> occupy(int64_t ns) {
  const int64_t start = std::max(now_ns() + 2'500, device_free_ns + 1'000);
  device_free_ns = start + ns;
  return {start, device_free_ns};
}

void record_memory(cupti::MemoryOperation operation, uint64_t address) {
  if (!kinds.contains(cupti::kMemory2)) return;
  const auto& [bytes, pooled] = held.at(address);
  cupti::MemoryActivity m{};
  m.kind = cupti::kMemory2;
  m.operation = operation;
  m.memory = cupti::kDeviceMemory;
  m.address = address;
  m.bytes = static_cast<uint64_t>(bytes);
  m.time = static_cast<uint64_t>(now_ns());
  if (pooled) m.pool = {cupti::kLocalPool, 0, 0x1234, 0, static_cast<uint64_t>(pool_size)};
  record(m, 0);
  m.kind = kUnheardOf;
  record(m, 0);
}

void wait_for_device(uint32_t callback, cupti::SynchronizationType type, uint32_t stream) {
  const int64_t begin = now_ns();
  sleep_until(device_free_ns + 5'000);
  const std::lock_guard lock(mutex);
  const uint32_t id = next_correlation();
  const int64_t end = now_ns();
  if (kinds.contains(cupti::kSynchronization)) {
    cupti::SynchronizationActivity s{};
    s.kind = cupti::kSynchronization;
    s.type = type;
    s.start = static_cast<uint64_t>(begin);
    s.end = static_cast<uint64_t>(end);
    s.context = 1;
    s.stream = stream;
    s.event = UINT32_MAX;
    s.correlation = id;
    record(s, end);
  }
  record_call(callback, begin, end, id);
}

}  // namespace

extern "C" {

bool fake_cuda_init() {
  const char* path = std::getenv("CUDA_INJECTION64_PATH");
  if (path == nullptr) return true;
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "fake_cuda: %s\n", dlerror());
    return false;
  }
  const auto initialize = reinterpret_cast<int (*)()>(dlsym(library, "InitializeInjection"));
  return initialize != nullptr && initialize() == 1;
}

void fake_launch(const char* kernel, int64_t ns, int64_t call_ns) {
  const int64_t begin = now_ns();
  spend(call_ns);
  if (device_free_ns - now_ns() > kQueueNs) sleep_until(device_free_ns - kQueueNs);
  const std::lock_guard lock(mutex);
  pay_for_recording();
  const auto [start, end] = occupy(ns);
  ++launches;
  next_correlation();
  if (kinds.contains(cupti::kConcurrentKernel)) {
    cupti::KernelActivity k{};
    k.kind = cupti::kConcurrentKernel;
    k.start = static_cast<uint64_t>(start);
    k.end = static_cast<uint64_t>(end);
    k.context = 1;
    k.stream = 7;
    k.grid[0] = 1024, k.grid[1] = k.grid[2] = 1;
    k.block[0] = 256, k.block[1] = k.block[2] = 1;
    k.correlation = correlation;
    k.name = kernel;
    record(k, end);
  }
  record_call(1, begin, now_ns(), correlation);
}

void fake_graph_launch(int64_t ns, int64_t call_ns) {
  const int64_t begin = now_ns();
  spend(call_ns);
  const std::lock_guard lock(mutex);
  const auto [start, end] = occupy(ns);
  ++launches;
  next_correlation();
  const bool traced = kinds.contains(cupti::kGraphTrace);
  static const bool traced_at_first = traced;    // as the graph was instantiated
  if (traced && !traced_at_first) std::abort();  // as CUPTI 13.0 does, with less of a message
  if (traced) {
    cupti::GraphActivity g{};
    g.kind = cupti::kGraphTrace;
    g.start = static_cast<uint64_t>(start);
    g.end = static_cast<uint64_t>(end);
    g.context = 1;
    g.stream = 7;
    g.graph = 2;
    g.correlation = correlation;
    record(g, end);
  }
  record_call(5, begin, now_ns(), correlation);
}

void fake_copy_in(int64_t bytes, int64_t ns) {
  const int64_t begin = now_ns();
  std::unique_lock lock(mutex);
  const auto [start, end] = occupy(ns);
  const uint32_t id = next_correlation();
  if (kinds.contains(cupti::kMemcpy)) {
    cupti::CopyActivity c{};
    c.kind = cupti::kMemcpy;
    c.copy_kind = 1;
    c.source_kind = 1;
    c.destination_kind = 3;
    c.bytes = static_cast<uint64_t>(bytes);
    c.start = static_cast<uint64_t>(start);
    c.end = static_cast<uint64_t>(end);
    c.context = 1;
    c.stream = 7;
    c.correlation = id;
    record(c, end);
  }
  lock.unlock();
  sleep_until(end + 5'000);
  lock.lock();
  record_call(3, begin, now_ns(), id);
}

void fake_synchronize() { wait_for_device(2, cupti::kContextSynchronize, UINT32_MAX); }
void fake_stream_synchronize(uint32_t stream) {
  wait_for_device(6, cupti::kStreamSynchronize, stream);
}

uint64_t fake_malloc(int64_t bytes, bool pooled) {
  const std::lock_guard lock(mutex);
  const int64_t begin = now_ns();
  const uint64_t address = next_address += 1 << 30;
  held[address] = {bytes, pooled};
  if (pooled) pool_size += 2 * bytes;
  record_memory(cupti::kAllocation, address);
  record_call(7, begin, now_ns(), next_correlation());
  return address;
}

void fake_free(uint64_t address) {
  const std::lock_guard lock(mutex);
  const int64_t begin = now_ns();
  record_memory(cupti::kRelease, address);
  held.erase(address);
  record_call(8, begin, now_ns(), next_correlation());
}

void fake_get_device() {
  const std::lock_guard lock(mutex);
  const int64_t begin = now_ns();
  record_call(4, begin, begin + 100, next_correlation());
}

int64_t fake_launches() { return launches; }

int cuptiActivityRegisterCallbacks(cupti::BufferRequested on_requested,
                                   cupti::BufferCompleted on_completed) {
  const std::lock_guard lock(mutex);
  requested = on_requested;
  completed = on_completed;
  return 0;
}

int cuptiActivityEnable(uint32_t kind) {
  const std::lock_guard lock(mutex);
  kinds.insert(kind);
  if (kind == cupti::kDevice) {
    cupti::DeviceActivity d{};
    d.kind = kind;
    d.multiprocessors = 132;
    d.name = "imaginary device";
    record(d, 0);
  }
  return 0;
}

int cuptiActivityDisable(uint32_t kind) {
  const std::lock_guard lock(mutex);
  kinds.erase(kind);
  return 0;
}

int cuptiActivityEnableRuntimeApi(uint32_t callback, uint8_t on) {
  const std::lock_guard lock(mutex);
  on ? static_cast<void>(runtime_calls.insert(callback))
     : static_cast<void>(runtime_calls.erase(callback));
  return 0;
}

int cuptiActivityEnableDriverApi(uint32_t, uint8_t) { return 0; }

int cuptiActivityFlushAll(uint32_t flag) {
  const std::lock_guard lock(mutex);
  deliver(flag == cupti::kFlushForced);
  return 0;
}

int cuptiActivityGetNextRecord(uint8_t* data, size_t valid, void** at) {
  auto* next = static_cast<uint8_t*>(*at);
  next = next == nullptr ? data : next + size_of(*reinterpret_cast<const uint32_t*>(next));
  if (next >= data + valid) return kNoMore;
  if (size_of(*reinterpret_cast<const uint32_t*>(next)) == 0) return kInvalid;
  *at = next;
  return 0;
}

int cuptiActivityGetNumDroppedRecords(void*, uint32_t, size_t* dropped) {
  *dropped = 0;
  return 0;
}

int cuptiGetCallbackName(uint32_t domain, uint32_t callback, const char** name) {
  if (domain != cupti::kDomainRuntime || callback == 0 || callback >= kRuntimeNames.size())
    return kInvalid;
  *name = kRuntimeNames[callback];
  return 0;
}

int cuptiSetThreadIdType(uint32_t) { return 0; }
int cuptiGetVersion(uint32_t* version) {
  *version = 0;
  return 0;
}

}  // extern "C"
