// SPDX-License-Identifier: Apache-2.0
// The part of CUPTI's binary interface that the capture uses, declared here so that the capture
// builds without the toolkit and works with whichever libcupti the watched program brings. Records
// are the leading fields that CUPTI 11.6 to 13 have in common; they grow at their end only.
// tests/capture/cupti_abi_test.cpp holds these declarations against NVIDIA's headers where those
// are found.
#pragma once
#include <cstddef>
#include <cstdint>

namespace saturate::observe::cupti {

using Result = int;
constexpr Result kSuccess = 0;
constexpr uint32_t kFlushForced = 1;
constexpr uint32_t kThreadIdDefault = 0, kThreadIdSystem = 1;
constexpr uint32_t kDomainDriver = 1, kDomainRuntime = 2, kDomainResource = 3;
constexpr uint32_t kModuleLoaded = 6;  // of kDomainResource

// What kModuleLoaded brings, valid within the callback.
struct ModuleData {
  uint32_t id;
  size_t bytes;
  const char* cubin;
};
struct ResourceData {
  void *context, *resource;
  const ModuleData* module;
};
using Callback = void (*)(void* user, uint32_t domain, uint32_t callback, const void* data);

enum Kind : uint32_t {
  kMemcpy = 1,
  kMemset = 2,
  kDriver = 4,
  kRuntime = 5,
  kDevice = 8,
  kConcurrentKernel = 10,
  kOverhead = 17,
  kMemcpyPeer = 22,
  kSynchronization = 38,
  kMemory2 = 49,
  kGraphTrace = 51,
};

enum Attribute : uint32_t { kDeviceBufferSize = 0, kDeviceBufferPoolLimit = 2 };

enum OverheadKind : uint32_t {
  kDriverCompiler = 1,
  kBufferFlush = 1u << 16,
  kInstrumentation = 2u << 16,
  kResource = 3u << 16,
  kModuleLoading = 4u << 16,
  kLazyLoading = 5u << 16,
  kCommandBufferFull = 6u << 16,
  kBufferRequest = 7u << 16,
};

struct Activity {
  uint32_t kind;
};
struct KernelActivity {
  uint32_t kind;
  uint8_t unused_a[12];
  uint64_t start, end, completed;
  uint32_t device, context, stream;
  int32_t grid[3], block[3];
  uint8_t unused_b[16];
  uint32_t correlation;
  int64_t grid_id;
  const char* name;
  uint8_t unused_c[32];
  uint64_t graph_node;  // 0: of no graph
};
struct CopyActivity {
  uint32_t kind;
  uint8_t copy_kind, source_kind, destination_kind, flags;
  uint64_t bytes, start, end;
  uint32_t device, context, stream, correlation;
};
struct PeerCopyActivity {
  uint32_t kind;
  uint8_t copy_kind, source_kind, destination_kind, flags;
  uint64_t bytes, start, end;
  uint32_t device, context, stream;
  uint32_t ends[4];  // device and context of either end
  uint32_t correlation;
};
struct FillActivity {
  uint32_t kind, value;
  uint64_t bytes, start, end;
  uint32_t device, context, stream, correlation;
};
struct ApiActivity {
  uint32_t kind, callback;
  uint64_t start, end;
  uint32_t process, thread, correlation, result;
};
struct OverheadActivity {
  uint32_t kind, overhead, object_kind;
  uint32_t object[3];  // of a thread (object_kind 2): process and thread
  uint64_t start, end;
};
constexpr uint32_t kObjectThread = 2;
// kMemory2: an allocation or a release. A pool's size is valid for kLocalPool.
struct MemoryActivity {
  uint32_t kind, operation, memory, correlation;
  uint64_t address, bytes, time, caller;
  uint32_t process, device, context, stream;
  const char* name;
  uint32_t async, unused;
  struct {
    uint32_t type, unused;
    uint64_t address, release_threshold, size;
  } pool;
};
enum MemoryOperation : uint32_t { kAllocation = 1, kRelease = 2 };
enum MemoryKind : uint32_t {
  kDeviceMemory = 3,
  kArrayMemory = 4,
  kManagedMemory = 5,
  kDeviceStaticMemory = 6,
  kManagedStaticMemory = 7,
};
constexpr uint32_t kLocalPool = 1;
// What a call that waits waited for.
struct SynchronizationActivity {
  uint32_t kind, type;
  uint64_t start, end;
  uint32_t correlation, context, stream, event;
};
enum SynchronizationType : uint32_t {
  kEventSynchronize = 1,
  kStreamWaitEvent = 2,
  kStreamSynchronize = 3,
  kContextSynchronize = 4,
};
struct GraphActivity {
  uint32_t kind, correlation;
  uint64_t start, end;
  uint32_t device, graph, context, stream;
};
struct DeviceActivity {
  uint32_t kind;
  uint8_t unused_a[40];
  uint32_t multiprocessors;
  uint8_t unused_b[64];
  uint32_t id;
  uint8_t unused_c[20];
  const char* name;
};
static_assert(offsetof(KernelActivity, start) == 16 && offsetof(KernelActivity, grid) == 52 &&
              offsetof(KernelActivity, correlation) == 92 &&
              offsetof(KernelActivity, name) == 104 && offsetof(KernelActivity, graph_node) == 144);
static_assert(offsetof(DeviceActivity, multiprocessors) == 44 &&
              offsetof(DeviceActivity, id) == 112 && offsetof(DeviceActivity, name) == 136);
static_assert(offsetof(PeerCopyActivity, correlation) == 60);
static_assert(offsetof(MemoryActivity, pool) == 80 && sizeof(MemoryActivity) == 112);

using BufferRequested = void (*)(uint8_t** buffer, size_t* size, size_t* max_records);
using BufferCompleted = void (*)(void* context, uint32_t stream, uint8_t* buffer, size_t size,
                                 size_t valid);

// From this version on CUPTI can have several clients, by an interface of its own.
constexpr uint32_t kSeveralClients = 130300;
constexpr uint32_t kThreadIdAttribute = 21;  // of that interface
struct SubscriberParams {
  size_t struct_size;
  const char* name;
  char* old_name;
  size_t old_size;
  uint8_t allow_several;
  uint8_t unused[7];
};
static_assert(sizeof(SubscriberParams) == 40 && offsetof(SubscriberParams, allow_several) == 32);

// Entry points. Those marked optional may be null: older versions lack them.
struct Api {
  Result (*register_callbacks)(BufferRequested, BufferCompleted) = nullptr;
  Result (*enable)(uint32_t kind) = nullptr;
  Result (*disable)(uint32_t kind) = nullptr;
  Result (*flush_all)(uint32_t flag) = nullptr;
  Result (*next_record)(uint8_t* buffer, size_t valid, Activity** record) = nullptr;
  Result (*dropped_records)(void* context, uint32_t stream, size_t* dropped) = nullptr;
  Result (*callback_name)(uint32_t domain, uint32_t callback, const char** name) = nullptr;
  Result (*set_thread_id_type)(uint32_t type) = nullptr;                             // optional
  Result (*enable_runtime_api)(uint32_t, uint8_t on) = nullptr;                      // optional
  Result (*enable_driver_api)(uint32_t, uint8_t on) = nullptr;                       // optional
  Result (*set_attribute)(uint32_t attribute, size_t* size, void* value) = nullptr;  // optional
  Result (*version)(uint32_t* version) = nullptr;                                    // optional
  Result (*subscribe)(void** subscriber, Callback, void* user) = nullptr;            // optional
  Result (*unsubscribe_v1)(void* subscriber) = nullptr;                              // optional
  Result (*enable_callback)(uint32_t on, void* subscriber, uint32_t domain,
                            uint32_t callback) = nullptr;                        // optional
  Result (*subscribe_v2)(void**, Callback, void*, SubscriberParams*) = nullptr;  // optional
  // Of one among several clients: see several_clients.h. Else null.
  void (*unsubscribe)() = nullptr;
  void* subscriber = nullptr;
  Result (*register_callbacks_v1)(BufferRequested, BufferCompleted) = nullptr;
  void* handle = nullptr;  // of dlopen
};

}  // namespace saturate::observe::cupti
