// SPDX-License-Identifier: Apache-2.0
// The CUDA calls the runtime needs, as plain functions: implemented by cuda/backend.cpp, or by
// nocuda/backend.cpp, which throws Error{unsupported}, so that no caller needs an #ifdef.
#pragma once
#include <cstddef>
#include <functional>
#include <string>

#include "runtime/device.h"

namespace saturate::cuda {

int device_count() noexcept;
DeviceInfo device_info(int index);
Capability capability(int index) noexcept;
std::string device_uuid(int index);
void set_device(int index);

void* allocate(int device, size_t bytes);
void release(int device, void* data) noexcept;
void* allocate_host(int device, size_t bytes);  // pinned, mapped, zeroed
void release_host(void* data, size_t bytes) noexcept;

// Between memory of the host and of devices, as the addresses say.
void copy(void* dst, const void* src, size_t bytes, void* stream);
// `rows` rows of `width` bytes, on the device, each `pitch` bytes behind the one before it.
void copy_rows(void* dst, size_t dst_pitch, const void* src, size_t src_pitch, size_t width,
               size_t rows, void* stream);
void fill(void* dst, int value, size_t bytes, void* stream);

void* create_stream(int device);
void destroy_stream(void* stream) noexcept;
void synchronize_stream(void* stream);

void* create_event(int device, bool timing);
void destroy_event(void* event) noexcept;
void record_event(void* event, void* stream);
void wait_event(void* stream, void* event);
void synchronize_event(void* event);
bool event_done(void* event);
double elapsed_ms(void* begin, void* end);

// Returns an instantiated graph of what `body` enqueues on `stream`; `nodes` gets its size.
void* capture_graph(void* stream, const std::function<void()>& body, size_t* nodes);
void launch_graph(void* exec, void* stream);
void destroy_graph(void* exec) noexcept;

}  // namespace saturate::cuda
