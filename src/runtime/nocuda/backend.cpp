// SPDX-License-Identifier: Apache-2.0
// This build has no CUDA: there are no GPUs, so only device_count can be reached by a user.
#include "base/error.h"
#include "runtime/cuda_backend.h"

namespace saturate::cuda {
namespace {
[[noreturn]] void absent() {
  throw Error(Errc::unsupported, "cuda", "this build has no CUDA; build where nvcc is installed");
}
}  // namespace

int device_count() noexcept { return 0; }
DeviceInfo device_info(int) { absent(); }
Capability capability(int) noexcept { return {}; }
std::string device_uuid(int) { absent(); }
void set_device(int) { absent(); }
void* allocate(int, size_t) { absent(); }
void release(int, void*) noexcept {}
void* allocate_host(int, size_t) { absent(); }
void release_host(void*, size_t) noexcept {}
void copy(void*, const void*, size_t, void*) { absent(); }
void copy_rows(void*, size_t, const void*, size_t, size_t, size_t, void*) { absent(); }
void fill(void*, int, size_t, void*) { absent(); }
void* create_stream(int) { absent(); }
void destroy_stream(void*) noexcept {}
void synchronize_stream(void*) { absent(); }
void* create_event(int, bool) { absent(); }
void destroy_event(void*) noexcept {}
void record_event(void*, void*) { absent(); }
void wait_event(void*, void*) { absent(); }
void synchronize_event(void*) { absent(); }
bool event_done(void*) { absent(); }
double elapsed_ms(void*, void*) { absent(); }
void* capture_graph(void*, const std::function<void()>&, size_t*) { absent(); }
void launch_graph(void*, void*) { absent(); }
void destroy_graph(void*) noexcept {}

}  // namespace saturate::cuda
