// SPDX-License-Identifier: Apache-2.0
// A libcuda.so of the tests that only copies: 32 GB/s from memory that it gave itself, 8 GB/s from
// any other. FAKE_CUDA_REFUSES: no context is to be had. FAKE_CUDA_COUNT names a file that grows by
// a byte at each start.
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

const char* pinned = nullptr;

void spend(size_t bytes, const void* host) {
  timespec t{};
  const auto now = [&] {
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
  };
  const double end = now() + static_cast<double>(bytes) / (host == pinned ? 32 : 8);
  while (now() < end) {
  }
}

}  // namespace

extern "C" {
int cuInit(unsigned) {
  if (const char* path = std::getenv("FAKE_CUDA_COUNT")) {
    if (std::FILE* file = std::fopen(path, "a")) {
      std::fputc('1', file);
      std::fclose(file);
    }
  }
  return 0;
}
int cuDeviceGet(int* device, int) { return *device = 0; }
int cuDeviceGetName(char* name, int bytes, int) {
  return std::snprintf(name, static_cast<size_t>(bytes), "imaginary device") < 0;
}
int cuDeviceGetPCIBusId(char* bus, int bytes, int) {
  return std::snprintf(bus, static_cast<size_t>(bytes), "0000:17:00.0") < 0;
}
int cuDevicePrimaryCtxRetain(void**, int) { return std::getenv("FAKE_CUDA_REFUSES") ? 2 : 0; }
int cuCtxSetCurrent(void*) { return 0; }
int cuCtxSynchronize() { return 0; }
int cuMemAlloc_v2(unsigned long long* address, size_t) {
  *address = 4096;
  return 0;
}
int cuMemAllocHost_v2(void** address, size_t bytes) {
  pinned = static_cast<const char*>(*address = std::malloc(bytes));
  return 0;
}
int cuMemcpyHtoD_v2(unsigned long long, const void* from, size_t bytes) {
  spend(bytes, from);
  return 0;
}
int cuMemcpyDtoH_v2(void* to, unsigned long long, size_t bytes) {
  spend(bytes, to);
  return 0;
}
}
