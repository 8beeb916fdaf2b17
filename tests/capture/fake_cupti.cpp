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
#include <list>
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
struct Client {
  std::set<uint32_t> kinds, runtime_calls;
  cupti::BufferRequested requested = nullptr;
  cupti::BufferCompleted completed = nullptr;
  RequestedV2 requested_v2 = nullptr;
  CompletedV2 completed_v2 = nullptr;
  std::deque<Filling> buffers;  // the last is being filled
  cupti::Callback callback = nullptr;
  void* user = nullptr;
  bool modules = false;  // it wants to be called
};
constexpr int kSeveral = 39;  // CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
Client only;                  // of the older interface
std::list<Client> several;    // of the newer one
Client callbacks;             // of the older interface, its one subscriber

std::vector<Client*> clients() {
  std::vector<Client*> all = {&only};
  for (Client& c : several) all.push_back(&c);
  return all;
}
bool wanted(uint32_t kind) {
  const auto all = clients();
  return std::any_of(all.begin(), all.end(), [&](Client* c) { return c->kinds.contains(kind); });
}
int64_t device_free_ns = 0, launches = 0;
uint32_t correlation = 0;
bool calls_were_on = false, counting = true;

// FAKE_CUPTI_NEWER names the file of a copy that is of CUPTI 13.5.
uint32_t version() {
  Dl_info own{};
  const char* newer = std::getenv("FAKE_CUPTI_NEWER");
  if (newer != nullptr && dladdr(reinterpret_cast<const void*>(&version), &own) != 0 &&
      std::strcmp(own.dli_fname, newer) == 0)
    return 130500;
  const char* text = std::getenv("FAKE_CUPTI_VERSION");
  return text == nullptr ? 0 : static_cast<uint32_t>(std::atoi(text));
}

// CUPTI 13.0 stops to number what happens when the last call is switched off, for good.
uint32_t next_correlation() {
  bool on = wanted(cupti::kRuntime);
  for (const Client* c : clients()) on = on || !c->runtime_calls.empty();
  if (calls_were_on && !on && version() < cupti::kSeveralClients) counting = false;
  calls_were_on = on;
  return counting ? ++correlation : correlation;
}

// Hands back, in order, the buffers in which all is complete; `forced`: all, and what is not complete
// has no times then and comes no more.
void deliver(Client& client, bool forced) {
  const int64_t now = now_ns();
  while (!client.buffers.empty()) {
    Filling& b = client.buffers.front();
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
    client.buffers.pop_front();
    client.completed_v2 ? client.completed_v2(done.data, done.size, done.used, nullptr)
                        : client.completed(nullptr, 0, done.data, done.size, done.used);
  }
}

template <class Activity>
void record(Client& client, const Activity& activity, int64_t complete_ns) {
  if (client.requested == nullptr && client.requested_v2 == nullptr) return;
  auto& buffers = client.buffers;
  const size_t size = size_of(activity.kind);
  if (buffers.empty() || buffers.back().used + size > buffers.back().size) {
    uint8_t* data = nullptr;
    size_t bytes = 0, most = 0;
    client.requested_v2 ? client.requested_v2(&data, &bytes, &most, nullptr)
                        : client.requested(&data, &bytes, &most);
    if (data == nullptr) std::abort();  // as older versions of CUPTI
    std::memset(data, 0, bytes);
    buffers.push_back({data, bytes, 0, {}});
  }
  Filling& b = buffers.back();
  std::memcpy(b.data + b.used, &activity, std::min(size, sizeof activity));
  b.records.push_back({b.used, complete_ns});
  b.used += size;
}

template <class Activity>
void record(const Activity& activity, int64_t complete_ns) {
  for (Client* c : clients()) {
    if (c->kinds.contains(activity.kind)) record(*c, activity, complete_ns);
  }
}

void record_call(uint32_t callback, int64_t start, int64_t end, uint32_t id) {
  cupti::ApiActivity a{};
  a.kind = cupti::kRuntime;
  a.callback = callback;
  a.start = static_cast<uint64_t>(start);
  a.end = static_cast<uint64_t>(end);
  a.process = static_cast<uint32_t>(getpid());
  a.thread = static_cast<uint32_t>(gettid());
  a.correlation = id;
  for (Client* c : clients()) {
    if (c->kinds.contains(cupti::kRuntime) || c->runtime_calls.contains(callback))
      record(*c, a, end);
  }
}

// What recording a launch costs the host, as FAKE_CUPTI_COST_NS says.
void pay_for_recording() {
  static const int64_t cost = [] {
    const char* text = std::getenv("FAKE_CUPTI_COST_NS");
    return text == nullptr ? 0 : std::strtoll(text, nullptr, 10);
  }();
  if (cost > 0 && wanted(cupti::kConcurrentKernel)) spend(cost);
}

// When the device does something that is issued now: start and end.
std::pair<int64_t, int64_t> occupy(int64_t ns) {
  const int64_t start = std::max(now_ns() + 2'500, device_free_ns + 1'000);
  device_free_ns = start + ns;
  return {start, device_free_ns};
}

void record_memory(cupti::MemoryOperation operation, uint64_t address) {
  if (!wanted(cupti::kMemory2)) return;
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
  for (Client* c : clients()) {
    if (c->kinds.contains(cupti::kMemory2)) record(*c, m, 0);
  }
}

void wait_for_device(uint32_t callback, cupti::SynchronizationType type, uint32_t stream) {
  const int64_t begin = now_ns();
  sleep_until(device_free_ns + 5'000);
  const std::lock_guard lock(mutex);
  const uint32_t id = next_correlation();
  const int64_t end = now_ns();
  if (wanted(cupti::kSynchronization)) {
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

int enable(Client& client, bool refused, uint32_t kind) {
  const std::lock_guard lock(mutex);
  if (refused) return kSeveral;
  client.kinds.insert(kind);
  if (kind == cupti::kDevice) {
    cupti::DeviceActivity d{};
    d.kind = kind;
    d.multiprocessors = 132;
    d.name = "imaginary device";
    record(client, d, 0);
  }
  return 0;
}

int enable_call(Client& client, uint32_t callback, uint8_t on) {
  const std::lock_guard lock(mutex);
  on ? static_cast<void>(client.runtime_calls.insert(callback))
     : static_cast<void>(client.runtime_calls.erase(callback));
  return 0;
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
  if (wanted(cupti::kConcurrentKernel)) {
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

void fake_load_module(const void* cubin, size_t bytes) {
  const std::lock_guard lock(mutex);
  const cupti::ModuleData module{1, bytes, static_cast<const char*>(cubin)};
  const cupti::ResourceData resource{nullptr, nullptr, &module};
  auto all = clients();
  all.push_back(&callbacks);
  for (const Client* c : all) {
    if (c->modules && c->callback != nullptr)
      c->callback(c->user, cupti::kDomainResource, cupti::kModuleLoaded, &resource);
  }
}

void fake_graph_launch(int64_t ns, int64_t call_ns) {
  const int64_t begin = now_ns();
  spend(call_ns);
  const std::lock_guard lock(mutex);
  const auto [start, end] = occupy(ns);
  ++launches;
  next_correlation();
  const bool traced = wanted(cupti::kGraphTrace);
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
  if (wanted(cupti::kMemcpy)) {
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
  if (!several.empty()) return kSeveral;
  only.requested = on_requested;
  only.completed = on_completed;
  return 0;
}

int cuptiActivityEnable(uint32_t kind) { return enable(only, !several.empty(), kind); }

int cuptiActivityDisable(uint32_t kind) {
  const std::lock_guard lock(mutex);
  only.kinds.erase(kind);
  return 0;
}

int cuptiActivityEnableRuntimeApi(uint32_t callback, uint8_t on) {
  return enable_call(only, callback, on);
}

int cuptiActivityEnableDriverApi(uint32_t, uint8_t) { return 0; }

// The newer interface, of clients that stand each other.
int cuptiSubscribe_v2(void** subscriber, cupti::Callback callback, void* user,
                      cupti::SubscriberParams* params) {
  const std::lock_guard lock(mutex);
  if (!only.kinds.empty() || callbacks.callback != nullptr || params->allow_several != 1)
    return kSeveral;
  *subscriber = &several.emplace_back();
  several.back().callback = callback;
  several.back().user = user;
  return 0;
}
int cuptiSubscribe(void** subscriber, cupti::Callback callback, void* user) {
  const std::lock_guard lock(mutex);
  if (callbacks.callback != nullptr || !several.empty()) return kSeveral;
  callbacks.callback = callback;
  callbacks.user = user;
  *subscriber = &callbacks;
  return 0;
}
int cuptiEnableCallback(uint32_t on, void* subscriber, uint32_t domain, uint32_t callback) {
  const std::lock_guard lock(mutex);
  if (domain != cupti::kDomainResource || callback != cupti::kModuleLoaded) return kInvalid;
  static_cast<Client*>(subscriber)->modules = on != 0;
  return 0;
}
int cuptiUnsubscribe(void* subscriber) {
  const std::lock_guard lock(mutex);
  if (subscriber == &callbacks) callbacks = {};
  several.remove_if([&](const Client& c) { return &c == subscriber; });
  return 0;
}
int cuptiActivityRegisterCallbacks_v2(void* subscriber, RequestedV2 on_requested,
                                      CompletedV2 on_completed) {
  const std::lock_guard lock(mutex);
  auto& client = *static_cast<Client*>(subscriber);
  client.requested_v2 = on_requested;
  client.completed_v2 = on_completed;
  return 0;
}
int cuptiActivityEnable_v2(void* subscriber, uint32_t kind, void*) {
  // Whole graphs would be whole for all clients: not without an attribute of all.
  return enable(*static_cast<Client*>(subscriber), kind == cupti::kGraphTrace, kind);
}
int cuptiActivityDisable_v2(void* subscriber, uint32_t kind, void*) {
  const std::lock_guard lock(mutex);
  static_cast<Client*>(subscriber)->kinds.erase(kind);
  return 0;
}
int cuptiActivityGetNextRecord_v2(void*, uint8_t* data, size_t valid, void** at) {
  return cuptiActivityGetNextRecord(data, valid, at);
}
int cuptiActivityGetNumDroppedRecords_v2(void*, void*, uint32_t, size_t* dropped) {
  *dropped = 0;
  return 0;
}
int cuptiActivitySetAttribute_v2(void*, uint32_t, size_t*, void*) { return 0; }
int cuptiActivityEnableRuntimeApi_v2(void* subscriber, uint32_t callback, uint8_t on) {
  return enable_call(*static_cast<Client*>(subscriber), callback, on);
}
int cuptiActivityEnableDriverApi_v2(void*, uint32_t, uint8_t) { return 0; }

int cuptiActivityFlushAll(uint32_t flag) {
  const std::lock_guard lock(mutex);
  for (Client* c : clients()) deliver(*c, flag == cupti::kFlushForced);
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
int cuptiGetVersion(uint32_t* number) {
  *number = version();
  return 0;
}

}  // extern "C"
