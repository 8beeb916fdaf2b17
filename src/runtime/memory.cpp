// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "base/error.h"
#include "runtime/cuda_backend.h"
#include "runtime/memory_use.h"

namespace saturate {
namespace {

std::atomic<size_t> buffers{0};  // bytes in all of them

constexpr size_t kAlignment = 256;  // what cudaMalloc gives; kernels may rely on it on both devices

void* allocate_cpu(size_t bytes) {
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* data = rounded < bytes ? nullptr : std::aligned_alloc(kAlignment, rounded);
  if (!data) {
    throw Error(Errc::out_of_memory, "memory",
                fmt::format("{} MiB asked for on the CPU; lower batch.target_tokens", bytes >> 20));
  }
  return data;
}

}  // namespace

Buffer::Buffer(Device device, size_t bytes) : Block(device, bytes) {
  if (bytes == 0) return;
  data_ = device.is_cuda() ? cuda::allocate(device.index, bytes) : allocate_cpu(bytes);
  buffers += bytes;
}
Buffer::~Buffer() {
  if (!data_) return;
  buffers -= bytes_;
  if (device_.is_cuda()) {
    cuda::release(device_.index, data_);
  } else {
    std::free(data_);
  }
}

size_t buffer_bytes() noexcept { return buffers; }

HostBuffer::HostBuffer(Device device, size_t bytes) : Block(device, bytes) {
  if (bytes == 0) return;
  if (device.is_cuda()) {
    data_ = cuda::allocate_host(device.index, bytes);
  } else {
    data_ = allocate_cpu(bytes);
    std::memset(data_, 0, bytes);
  }
}
HostBuffer::~HostBuffer() {
  if (!data_) return;
  if (device_.is_cuda()) {
    cuda::release_host(data_, bytes_);
  } else {
    std::free(data_);
  }
}

namespace {
void copy(const Stream& stream, void* dst, const void* src, size_t bytes) {
  if (bytes == 0) return;
  if (stream.device().is_cuda()) {
    cuda::copy(dst, src, bytes, stream.native());
  } else {
    std::memcpy(dst, src, bytes);
  }
}
}  // namespace

void copy_to_device(const Stream& s, void* dst, const void* src, size_t bytes) {
  copy(s, dst, src, bytes);
}
void copy_to_host(const Stream& s, void* dst, const void* src, size_t bytes) {
  copy(s, dst, src, bytes);
}
void copy_on_device(const Stream& s, void* dst, const void* src, size_t bytes) {
  copy(s, dst, src, bytes);
}
void copy_rows(const Context& ctx, void* dst, size_t dst_pitch, const void* src, size_t src_pitch,
               size_t width, size_t rows) {
  if (width == 0 || rows == 0) return;
  if (ctx.device.is_cuda()) {
    cuda::copy_rows(dst, dst_pitch, src, src_pitch, width, rows, ctx.stream);
    return;
  }
  for (size_t r = 0; r < rows; ++r)
    std::memcpy(static_cast<char*>(dst) + r * dst_pitch,
                static_cast<const char*>(src) + r * src_pitch, width);
}
void fill_bytes(const Context& ctx, void* dst, int value, size_t bytes) {
  if (bytes == 0) return;
  if (ctx.device.is_cuda()) {
    cuda::fill(dst, value, bytes, ctx.stream);
  } else {
    std::memset(dst, value, bytes);
  }
}
void fill_bytes(const Stream& s, void* dst, int value, size_t bytes) {
  fill_bytes(Context{s.device(), s.native()}, dst, value, bytes);
}

Buffer zeroed(const Stream& stream, size_t bytes) {
  Buffer b(stream.device(), bytes);
  constexpr size_t kPage = 4096, kWorth = size_t{1} << 18;
  if (stream.device().is_cuda() || bytes < kWorth) {
    fill_bytes(stream, b.data(), 0, bytes);
    return b;
  }
  // Whole pages are given back: the system brings zeros where the next write goes.
  const auto begin = reinterpret_cast<uintptr_t>(b.data()), end = begin + bytes;
  const uintptr_t first = (begin + kPage - 1) / kPage * kPage, last = end / kPage * kPage;
  if (madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED) != 0) {
    std::memset(b.data(), 0, bytes);
    return b;
  }
  std::memset(b.data(), 0, first - begin);
  std::memset(reinterpret_cast<void*>(last), 0, end - last);
  return b;
}

}  // namespace saturate
