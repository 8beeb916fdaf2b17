// SPDX-License-Identifier: Apache-2.0
// The CUDA of the tests: a device that takes time but computes nothing, and a CUPTI that records it
// as NVIDIA's does: one client, records in buffers of the client, delivered when complete.
#pragma once
#include <cstddef>
#include <cstdint>

#include "observe/capture/cupti_abi.h"

using RequestedV2 = void (*)(uint8_t**, size_t*, size_t*, void*);
using CompletedV2 = void (*)(uint8_t*, size_t, size_t, void*);

extern "C" {
// Loads the library of CUDA_INJECTION64_PATH as the CUDA driver does. False when that failed.
bool fake_cuda_init();
// Calls of the runtime. Each takes `call_ns` of the host; the kernel takes `ns` of the device.
void fake_launch(const char* kernel, int64_t ns, int64_t call_ns);
// A module with machine code is there from now on.
void fake_load_module(const void* cubin, size_t bytes);
// A graph of `kernels` kernels, recorded as one operation.
void fake_graph_launch(int64_t ns, int64_t call_ns);
// From pageable memory, so the host waits for it.
void fake_copy_in(int64_t bytes, int64_t ns);
void fake_synchronize();
void fake_stream_synchronize(uint32_t stream);
// Memory of the device; of a pool that takes twice as much when `pooled`.
uint64_t fake_malloc(int64_t bytes, bool pooled);
void fake_free(uint64_t address);
void fake_get_device();  // a call that says nothing
int64_t fake_launches();

// The part of CUPTI's interface that a profiler in the program uses.
int cuptiActivityRegisterCallbacks(void (*)(uint8_t**, size_t*, size_t*),
                                   void (*)(void*, uint32_t, uint8_t*, size_t, size_t));
int cuptiActivityEnable(uint32_t kind);
int cuptiActivityDisable(uint32_t kind);
int cuptiActivityFlushAll(uint32_t flag);
int cuptiActivityGetNextRecord(uint8_t* buffer, size_t valid, void** record);
// The same of CUPTI 13.3, for clients that stand others beside them.
int cuptiSubscribe_v2(void** subscriber, saturate::observe::cupti::Callback, void*,
                      saturate::observe::cupti::SubscriberParams* params);
int cuptiUnsubscribe(void* subscriber);
// Of the older interface there is one.
int cuptiSubscribe(void** subscriber, saturate::observe::cupti::Callback, void* user);
int cuptiActivityRegisterCallbacks_v2(void* subscriber, RequestedV2, CompletedV2);
int cuptiActivityEnable_v2(void* subscriber, uint32_t kind, void*);
int cuptiActivityDisable_v2(void* subscriber, uint32_t kind, void*);
}
