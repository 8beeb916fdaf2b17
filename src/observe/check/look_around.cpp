// SPDX-License-Identifier: Apache-2.0
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cstdlib>

#include "observe/check/check.h"

namespace saturate::observe {
namespace {

// Loaded and left at once: CUPTI starts nothing until it is asked to.
std::string cupti_version() {
  for (const char* name :
       {"libcupti.so", "libcupti.so.13", "libcupti.so.12", "/usr/local/cuda/lib64/libcupti.so",
        "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so"}) {
    void* library = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    if (!library) continue;
    // The version of CUPTI's interface: 130000 goes with CUDA 13.0, small numbers with those
    // before 11.
    using Get = int(uint32_t*);
    uint32_t version = 0;
    auto* get = reinterpret_cast<Get*>(dlsym(library, "cuptiGetVersion"));
    if (get && get(&version) == 0) {
      Dl_info where{};
      const bool known = dladdr(reinterpret_cast<void*>(get), &where) != 0 && where.dli_fname;
      return fmt::format("API version {}{}", version,
                         known ? fmt::format(", {}", where.dli_fname) : "");
    }
  }
  return "";
}

int runtime_version() {
  for (const char* name : {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0",
                           "libcudart.so", "/usr/local/cuda/lib64/libcudart.so"}) {
    void* library = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    if (!library) continue;
    auto* get = reinterpret_cast<int (*)(int*)>(dlsym(library, "cudaRuntimeGetVersion"));
    int version = 0;
    if (get && get(&version) == 0) return version;
  }
  return 0;
}

}  // namespace

CheckInput look_around(GpuMonitor* monitor, std::string no_gpu, ProcessReader reader) {
  CheckInput in{.monitor = monitor,
                .no_gpu = std::move(no_gpu),
                .reader = std::move(reader),
                .injection = "",
                .cupti = cupti_version(),
                .cuda_runtime = runtime_version()};
  if (const char* path = std::getenv("CUDA_INJECTION64_PATH")) in.injection = path;
  struct statvfs shared {};
  if (statvfs("/dev/shm", &shared) == 0)
    in.shared_memory_bytes =
        static_cast<long long>(shared.f_blocks) * static_cast<long long>(shared.f_frsize);
  in.user = geteuid();
  return in;
}

}  // namespace saturate::observe
