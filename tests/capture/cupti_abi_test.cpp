// SPDX-License-Identifier: Apache-2.0
// Our declarations of CUPTI's records against NVIDIA's.
#include <cupti.h>
#include <gtest/gtest.h>

#include "observe/capture/cupti_abi.h"

namespace cupti = saturate::observe::cupti;

namespace {

#define SAME_PLACE(ours, field, theirs, their_field)                             \
  static_assert(offsetof(cupti::ours, field) == offsetof(theirs, their_field) && \
                sizeof(cupti::ours::field) == sizeof(theirs::their_field))

#if CUPTI_API_VERSION >= 130000
using Kernel = CUpti_ActivityKernel10;
using Copy = CUpti_ActivityMemcpy6;
using PeerCopy = CUpti_ActivityMemcpyPtoP4;
using Fill = CUpti_ActivityMemset4;
using Overhead = CUpti_ActivityOverhead3;
using Graph = CUpti_ActivityGraphTrace2;
using Device = CUpti_ActivityDevice5;
using Memory = CUpti_ActivityMemory4;
using Synchronization = CUpti_ActivitySynchronization2;
using Call = CUpti_ActivityAPI;
SAME_PLACE(KernelActivity, start, Kernel, start);
SAME_PLACE(KernelActivity, end, Kernel, end);
SAME_PLACE(KernelActivity, device, Kernel, deviceId);
SAME_PLACE(KernelActivity, context, Kernel, contextId);
SAME_PLACE(KernelActivity, stream, Kernel, streamId);
SAME_PLACE(KernelActivity, correlation, Kernel, correlationId);
SAME_PLACE(KernelActivity, name, Kernel, name);
SAME_PLACE(KernelActivity, graph_node, Kernel, graphNodeId);
static_assert(offsetof(cupti::KernelActivity, grid) == offsetof(Kernel, gridX) &&
              offsetof(cupti::KernelActivity, block) == offsetof(Kernel, blockX));
SAME_PLACE(CopyActivity, copy_kind, Copy, copyKind);
SAME_PLACE(CopyActivity, source_kind, Copy, srcKind);
SAME_PLACE(CopyActivity, destination_kind, Copy, dstKind);
SAME_PLACE(CopyActivity, bytes, Copy, bytes);
SAME_PLACE(CopyActivity, start, Copy, start);
SAME_PLACE(CopyActivity, stream, Copy, streamId);
SAME_PLACE(CopyActivity, correlation, Copy, correlationId);
SAME_PLACE(PeerCopyActivity, bytes, PeerCopy, bytes);
SAME_PLACE(PeerCopyActivity, stream, PeerCopy, streamId);
SAME_PLACE(PeerCopyActivity, correlation, PeerCopy, correlationId);
SAME_PLACE(FillActivity, bytes, Fill, bytes);
SAME_PLACE(FillActivity, start, Fill, start);
SAME_PLACE(FillActivity, stream, Fill, streamId);
SAME_PLACE(FillActivity, correlation, Fill, correlationId);
SAME_PLACE(ApiActivity, callback, Call, cbid);
SAME_PLACE(ApiActivity, start, Call, start);
SAME_PLACE(ApiActivity, thread, Call, threadId);
SAME_PLACE(ApiActivity, correlation, Call, correlationId);
SAME_PLACE(OverheadActivity, overhead, Overhead, overheadKind);
SAME_PLACE(OverheadActivity, object_kind, Overhead, objectKind);
SAME_PLACE(OverheadActivity, object, Overhead, objectId);
SAME_PLACE(OverheadActivity, start, Overhead, start);
SAME_PLACE(GraphActivity, correlation, Graph, correlationId);
SAME_PLACE(GraphActivity, start, Graph, start);
SAME_PLACE(GraphActivity, graph, Graph, graphId);
SAME_PLACE(GraphActivity, stream, Graph, streamId);
SAME_PLACE(MemoryActivity, operation, Memory, memoryOperationType);
SAME_PLACE(MemoryActivity, memory, Memory, memoryKind);
SAME_PLACE(MemoryActivity, address, Memory, address);
SAME_PLACE(MemoryActivity, bytes, Memory, bytes);
SAME_PLACE(MemoryActivity, time, Memory, timestamp);
SAME_PLACE(MemoryActivity, device, Memory, deviceId);
SAME_PLACE(MemoryActivity, pool.type, Memory, memoryPoolConfig.memoryPoolType);
SAME_PLACE(MemoryActivity, pool.address, Memory, memoryPoolConfig.address);
SAME_PLACE(MemoryActivity, pool.size, Memory, memoryPoolConfig.pool.size);
SAME_PLACE(SynchronizationActivity, type, Synchronization, type);
SAME_PLACE(SynchronizationActivity, start, Synchronization, start);
SAME_PLACE(SynchronizationActivity, correlation, Synchronization, correlationId);
SAME_PLACE(SynchronizationActivity, stream, Synchronization, streamId);
SAME_PLACE(SynchronizationActivity, event, Synchronization, cudaEventId);
SAME_PLACE(DeviceActivity, multiprocessors, Device, numMultiprocessors);
SAME_PLACE(DeviceActivity, id, Device, id);
SAME_PLACE(DeviceActivity, name, Device, name);
#endif

SAME_PLACE(ResourceData, module, CUpti_ResourceData, resourceDescriptor);
SAME_PLACE(ModuleData, id, CUpti_ModuleResourceData, moduleId);
SAME_PLACE(ModuleData, bytes, CUpti_ModuleResourceData, cubinSize);
SAME_PLACE(ModuleData, cubin, CUpti_ModuleResourceData, pCubin);
static_assert(CUPTI_CB_DOMAIN_RESOURCE == cupti::kDomainResource &&
              CUPTI_CBID_RESOURCE_MODULE_LOADED == cupti::kModuleLoaded);

#if CUPTI_API_VERSION >= 130300
SAME_PLACE(SubscriberParams, struct_size, CUpti_SubscriberParams, structSize);
SAME_PLACE(SubscriberParams, name, CUpti_SubscriberParams, subscriberName);
SAME_PLACE(SubscriberParams, allow_several, CUpti_SubscriberParams, allowMultipleSubscribers);
static_assert(sizeof(cupti::SubscriberParams) == CUpti_SubscriberParams_STRUCT_SIZE &&
              CUPTI_ACTIVITY_ATTR_THREAD_ID_TYPE == cupti::kThreadIdAttribute);
// The signatures that several_clients.cpp gives to these.
template <auto Function, class... Arguments>
concept Takes = requires(Arguments... a) {
  Function(a...);
};
static_assert(
    Takes<cuptiActivityEnable_v2, CUpti_SubscriberHandle, CUpti_ActivityKind,
          CUpti_ActivityConfig*> &&
    Takes<cuptiActivityDisable_v2, CUpti_SubscriberHandle, CUpti_ActivityKind,
          CUpti_ActivityConfig*> &&
    Takes<cuptiActivityGetNextRecord_v2, CUpti_SubscriberHandle, uint8_t*, size_t,
          CUpti_Activity**> &&
    Takes<cuptiActivityGetNumDroppedRecords_v2, CUpti_SubscriberHandle, CUcontext, uint32_t,
          size_t*> &&
    Takes<cuptiActivitySetAttribute_v2, CUpti_SubscriberHandle, CUpti_ActivityAttribute, size_t*,
          void*> &&
    Takes<cuptiActivityEnableRuntimeApi_v2, CUpti_SubscriberHandle, CUpti_CallbackId, uint8_t>);
#endif

TEST(CuptiAbi, NumbersAreNvidias) {
  EXPECT_EQ(uint32_t{cupti::kMemcpy}, uint32_t{CUPTI_ACTIVITY_KIND_MEMCPY});
  EXPECT_EQ(uint32_t{cupti::kMemset}, uint32_t{CUPTI_ACTIVITY_KIND_MEMSET});
  EXPECT_EQ(uint32_t{cupti::kDriver}, uint32_t{CUPTI_ACTIVITY_KIND_DRIVER});
  EXPECT_EQ(uint32_t{cupti::kRuntime}, uint32_t{CUPTI_ACTIVITY_KIND_RUNTIME});
  EXPECT_EQ(uint32_t{cupti::kDevice}, uint32_t{CUPTI_ACTIVITY_KIND_DEVICE});
  EXPECT_EQ(uint32_t{cupti::kConcurrentKernel}, uint32_t{CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL});
  EXPECT_EQ(uint32_t{cupti::kOverhead}, uint32_t{CUPTI_ACTIVITY_KIND_OVERHEAD});
  EXPECT_EQ(uint32_t{cupti::kMemcpyPeer}, uint32_t{CUPTI_ACTIVITY_KIND_MEMCPY2});
  EXPECT_EQ(uint32_t{cupti::kGraphTrace}, uint32_t{CUPTI_ACTIVITY_KIND_GRAPH_TRACE});
  EXPECT_EQ(uint32_t{cupti::kMemory2}, uint32_t{CUPTI_ACTIVITY_KIND_MEMORY2});
  EXPECT_EQ(uint32_t{cupti::kSynchronization}, uint32_t{CUPTI_ACTIVITY_KIND_SYNCHRONIZATION});
  EXPECT_EQ(uint32_t{cupti::kAllocation},
            uint32_t{CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_ALLOCATION});
  EXPECT_EQ(uint32_t{cupti::kRelease}, uint32_t{CUPTI_ACTIVITY_MEMORY_OPERATION_TYPE_RELEASE});
  EXPECT_EQ(uint32_t{cupti::kDeviceMemory}, uint32_t{CUPTI_ACTIVITY_MEMORY_KIND_DEVICE});
  EXPECT_EQ(uint32_t{cupti::kArrayMemory}, uint32_t{CUPTI_ACTIVITY_MEMORY_KIND_ARRAY});
  EXPECT_EQ(uint32_t{cupti::kManagedMemory}, uint32_t{CUPTI_ACTIVITY_MEMORY_KIND_MANAGED});
  EXPECT_EQ(uint32_t{cupti::kDeviceStaticMemory},
            uint32_t{CUPTI_ACTIVITY_MEMORY_KIND_DEVICE_STATIC});
  EXPECT_EQ(uint32_t{cupti::kManagedStaticMemory},
            uint32_t{CUPTI_ACTIVITY_MEMORY_KIND_MANAGED_STATIC});
  EXPECT_EQ(uint32_t{cupti::kLocalPool}, uint32_t{CUPTI_ACTIVITY_MEMORY_POOL_TYPE_LOCAL});
  EXPECT_EQ(uint32_t{cupti::kEventSynchronize},
            uint32_t{CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE});
  EXPECT_EQ(uint32_t{cupti::kStreamSynchronize},
            uint32_t{CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE});
  EXPECT_EQ(uint32_t{cupti::kContextSynchronize},
            uint32_t{CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE});
  EXPECT_EQ(uint32_t{cupti::kLazyLoading}, uint32_t{CUPTI_ACTIVITY_OVERHEAD_LAZY_FUNCTION_LOADING});
  EXPECT_EQ(uint32_t{cupti::kObjectThread}, uint32_t{CUPTI_ACTIVITY_OBJECT_THREAD});
  EXPECT_EQ(uint32_t{cupti::kFlushForced}, uint32_t{CUPTI_ACTIVITY_FLAG_FLUSH_FORCED});
  EXPECT_EQ(uint32_t{cupti::kThreadIdSystem}, uint32_t{CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM});
  EXPECT_EQ(uint32_t{cupti::kDomainRuntime}, uint32_t{CUPTI_CB_DOMAIN_RUNTIME_API});
  EXPECT_EQ(uint32_t{cupti::kDomainDriver}, uint32_t{CUPTI_CB_DOMAIN_DRIVER_API});
}

}  // namespace
