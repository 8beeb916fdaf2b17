// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "runtime/cuda/check.h"
#include "runtime/cuda/graph_fills.h"
#include "runtime/cuda_backend.h"
#include "runtime/graph_edges.h"
#include "runtime/memory_use.h"
#include "runtime/parallel_for.h"

namespace saturate::cuda {
namespace {

// Destructors run it: a failure there has no caller to go to, and at process exit the driver may be
// gone.
void ignore_at_exit(cudaError_t code, const char* call) noexcept {
  if (code == cudaSuccess || code == cudaErrorCudartUnloading) return;
  cudaGetLastError();
  std::fprintf(stderr, "saturate: %s failed while releasing: %s\n", call, cudaGetErrorName(code));
}

// From here on the pages are made by several threads and as large ones, before they are pinned:
// cudaHostAlloc does it in one thread, page by page.
constexpr size_t kLargeHostBytes = size_t{64} << 20;

void* allocate_pinned(size_t bytes) {
  void* data = nullptr;
  SAT_CUDA(cudaHostAlloc(&data, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
  std::memset(data, 0, bytes);
  return data;
}

void* allocate_large_host(size_t bytes) {
  const std::string asked = std::to_string(bytes >> 20) + " MiB of host memory asked for, ";
  constexpr const char* kRemedy =
      "; let more ranks share the state (parallel.zero), or leave parallel.offload out";
  // Pages that nobody can provide would end the process instead of the call.
  const size_t left = host_bytes_left();
  if (bytes > left)
    throw Error(Errc::out_of_memory, "memory",
                asked + std::to_string(left >> 20) + " MiB left" + kRemedy);
  void* const data =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    throw Error(Errc::out_of_memory, "memory", asked + std::strerror(errno) + kRemedy);
  madvise(data, bytes, MADV_HUGEPAGE);  // advice: fails where the kernel has no large pages
  constexpr int64_t kPage = 4096, kGrain = 4096;  // 16 MiB at a time
  parallel_for(static_cast<int64_t>((bytes + kPage - 1) / kPage), kGrain,
               [&](int64_t begin, int64_t end) {
                 for (int64_t page = begin; page < end; ++page)
                   static_cast<volatile char*>(data)[page * kPage] = 0;
               });
  const cudaError_t code =
      cudaHostRegister(data, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);
  if (code == cudaSuccess) return data;
  // Some drivers in sandboxes pin only what they have allocated themselves.
  cudaGetLastError();
  munmap(data, bytes);
  return allocate_pinned(bytes);
}

cudaStream_t stream_cast(void* s) { return static_cast<cudaStream_t>(s); }
cudaEvent_t event_cast(void* e) { return static_cast<cudaEvent_t>(e); }

}  // namespace

void check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  cudaGetLastError();  // clears the sticky error, so that the next check reports its own failure
  throw Error(
      code == cudaErrorMemoryAllocation ? Errc::out_of_memory : Errc::device, "cuda",
      std::string(call) + ": " + cudaGetErrorName(code) + " (" + cudaGetErrorString(code) + ")");
}

int device_count() noexcept {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

DeviceInfo device_info(int index) {
  cudaDeviceProp p{};
  SAT_CUDA(cudaGetDeviceProperties(&p, index));
  set_device(index);
  size_t free_bytes = 0, total = 0;
  SAT_CUDA(cudaMemGetInfo(&free_bytes, &total));
  return {p.name, total, free_bytes, p.major, p.minor, p.multiProcessorCount};
}

std::string device_uuid(int index) {
  cudaDeviceProp p{};
  SAT_CUDA(cudaGetDeviceProperties(&p, index));
  std::string uuid = "GPU";
  for (size_t i = 0; i < sizeof p.uuid.bytes; ++i) {
    constexpr const char* kDigits = "0123456789abcdef";
    const auto byte = static_cast<unsigned char>(p.uuid.bytes[i]);
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) uuid += '-';
    uuid += {kDigits[byte / 16], kDigits[byte % 16]};
  }
  return uuid;
}

Capability capability(int index) noexcept {
  const auto attribute = [&](cudaDeviceAttr what) {
    int value = 0;
    if (cudaDeviceGetAttribute(&value, what, index) == cudaSuccess) return value;
    cudaGetLastError();  // the launch itself will report what is wrong with the device
    return 0;
  };
  void* encoder = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const bool asked = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encoder, 12000,
                                                      cudaEnableDefault, &found) == cudaSuccess;
  if (!asked) cudaGetLastError();
  return {.major = attribute(cudaDevAttrComputeCapabilityMajor),
          .minor = attribute(cudaDevAttrComputeCapabilityMinor),
          .multiprocessors = attribute(cudaDevAttrMultiProcessorCount),
          .shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
          .tensor_maps = asked && found == cudaDriverEntryPointSuccess};
}

void set_device(int index) { SAT_CUDA(cudaSetDevice(index)); }

void* allocate(int device, size_t bytes) {
  set_device(device);
  void* data = nullptr;
  const cudaError_t code = cudaMalloc(&data, bytes);
  if (code == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    size_t free_bytes = 0, total = 0;
    cudaMemGetInfo(&free_bytes, &total);
    throw Error(Errc::out_of_memory, "memory",
                std::to_string(bytes >> 20) + " MiB asked for on GPU " + std::to_string(device) +
                    ", " + std::to_string(free_bytes >> 20) + " of " + std::to_string(total >> 20) +
                    " MiB free; lower batch.target_tokens or raise batch.accumulate");
  }
  check(code, "cudaMalloc");
  return data;
}

void release(int device, void* data) noexcept {
  (void)device;
  ignore_at_exit(cudaFree(data), "cudaFree");
}

void* allocate_host(int device, size_t bytes) {
  set_device(device);
  return bytes < kLargeHostBytes ? allocate_pinned(bytes) : allocate_large_host(bytes);
}

void release_host(void* data, size_t bytes) noexcept {
  if (bytes >= kLargeHostBytes) {
    const cudaError_t code = cudaHostUnregister(data);
    if (code == cudaSuccess) {
      munmap(data, bytes);
      return;
    }
    cudaGetLastError();
    if (code == cudaErrorCudartUnloading) return;
  }
  ignore_at_exit(cudaFreeHost(data), "cudaFreeHost");
}

void copy(void* dst, const void* src, size_t bytes, void* stream) {
  SAT_CUDA(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, stream_cast(stream)));
}

void copy_rows(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t width,
               size_t rows, void* stream) {
  SAT_CUDA(cudaMemcpy2DAsync(dst, dst_pitch, src, src_pitch, width, rows, cudaMemcpyDeviceToDevice,
                             stream_cast(stream)));
}

void fill(void* dst, int value, size_t bytes, void* stream) {
  SAT_CUDA(cudaMemsetAsync(dst, value, bytes, stream_cast(stream)));
}

void* create_stream(int device) {
  set_device(device);
  cudaStream_t s = nullptr;
  SAT_CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
  return s;
}
void destroy_stream(void* s) noexcept {
  ignore_at_exit(cudaStreamDestroy(stream_cast(s)), "cudaStreamDestroy");
}
void synchronize_stream(void* s) { SAT_CUDA(cudaStreamSynchronize(stream_cast(s))); }

void* create_event(int device, bool timing) {
  set_device(device);
  cudaEvent_t e = nullptr;
  SAT_CUDA(cudaEventCreateWithFlags(&e, timing ? cudaEventDefault : cudaEventDisableTiming));
  return e;
}
void destroy_event(void* e) noexcept {
  ignore_at_exit(cudaEventDestroy(event_cast(e)), "cudaEventDestroy");
}
void record_event(void* e, void* s) { SAT_CUDA(cudaEventRecord(event_cast(e), stream_cast(s))); }
void wait_event(void* s, void* e) {
  SAT_CUDA(cudaStreamWaitEvent(stream_cast(s), event_cast(e), 0));
}
void synchronize_event(void* e) { SAT_CUDA(cudaEventSynchronize(event_cast(e))); }

bool event_done(void* e) {
  const cudaError_t code = cudaEventQuery(event_cast(e));
  if (code == cudaErrorNotReady) return false;
  check(code, "cudaEventQuery");
  return true;
}

double elapsed_ms(void* begin, void* end) {
  float ms = 0;
  SAT_CUDA(cudaEventElapsedTime(&ms, event_cast(begin), event_cast(end)));
  return ms;
}

namespace {

// The driver gives a node that several follow, and one that follows several, a stream of its own, and
// steps between its streams take longer the more there are (ADR 70). Capture makes such nodes by the
// order of streams, which events say already.
void leave_out_implied_edges(cudaGraph_t graph, size_t nodes) {
  size_t count = 0;
  SAT_CUDA(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
  if (count < nodes) return;  // a chain
  std::vector<cudaGraphNode_t> node(nodes), from(count), to(count);
  std::vector<cudaGraphEdgeData> data(count);
  SAT_CUDA(cudaGraphGetNodes(graph, node.data(), &nodes));
  SAT_CUDA(cudaGraphGetEdges(graph, from.data(), to.data(), data.data(), &count));
  std::unordered_map<cudaGraphNode_t, int32_t> number;
  for (size_t i = 0; i < nodes; ++i) number[node[i]] = static_cast<int32_t>(i);
  std::vector<GraphEdge> edges;
  for (size_t i = 0; i < count; ++i) {
    const cudaGraphEdgeData& d = data[i];
    edges.push_back(
        {number.at(from[i]), number.at(to[i]), d.from_port == 0 && d.to_port == 0 && d.type == 0});
  }
  for (const size_t i : implied_edges(nodes, edges))
    SAT_CUDA(cudaGraphRemoveDependencies(graph, &from[i], &to[i], &data[i], 1));
}

}  // namespace

void* capture_graph(void* stream, const std::function<void()>& body, size_t* nodes) {
  // Thread-local mode: worker threads may go on copying while this thread captures.
  SAT_CUDA(cudaStreamBeginCapture(stream_cast(stream), cudaStreamCaptureModeThreadLocal));
  cudaGraph_t graph = nullptr;
  try {
    body();
  } catch (...) {
    cudaStreamEndCapture(stream_cast(stream), &graph);
    cudaGetLastError();
    if (graph) cudaGraphDestroy(graph);
    throw;
  }
  SAT_CUDA(cudaStreamEndCapture(stream_cast(stream), &graph));
  cudaGraphExec_t exec = nullptr;
  cudaError_t code = cudaSuccess;
  try {
    fills_by_kernels(graph);
    SAT_CUDA(cudaGraphGetNodes(graph, nullptr, nodes));
    leave_out_implied_edges(graph, *nodes);
    code = cudaGraphInstantiate(&exec, graph, 0);
  } catch (...) {
    cudaGraphDestroy(graph);
    throw;
  }
  cudaGraphDestroy(graph);
  check(code, "cudaGraphInstantiate");
  return exec;
}

void launch_graph(void* exec, void* stream) {
  SAT_CUDA(cudaGraphLaunch(static_cast<cudaGraphExec_t>(exec), stream_cast(stream)));
}
void destroy_graph(void* exec) noexcept {
  ignore_at_exit(cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(exec)), "cudaGraphExecDestroy");
}

}  // namespace saturate::cuda
