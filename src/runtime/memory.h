// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>

#include "runtime/context.h"
#include "runtime/device.h"
#include "runtime/stream.h"

namespace saturate {

// What the two kinds of memory below have in common: they own a block, move, and never copy.
class Block {
 public:
  Block(Block&& o) noexcept
      : device_(o.device_),
        data_(std::exchange(o.data_, nullptr)),
        bytes_(std::exchange(o.bytes_, 0)) {}
  Block& operator=(Block&& o) noexcept {
    std::swap(device_, o.device_);
    std::swap(data_, o.data_);
    std::swap(bytes_, o.bytes_);
    return *this;
  }
  void* data() const noexcept { return data_; }
  template <class T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }
  size_t bytes() const noexcept { return bytes_; }
  Device device() const noexcept { return device_; }

 protected:
  Block() = default;
  Block(Device device, size_t bytes) : device_(device), bytes_(bytes) {}
  ~Block() = default;

  Device device_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Uninitialised device memory (256-byte aligned).
// Errors: out_of_memory with the bytes asked for and the bytes free.
class Buffer : public Block {
 public:
  Buffer() = default;
  Buffer(Device device, size_t bytes);
  ~Buffer();
  Buffer(Buffer&&) noexcept = default;
  Buffer& operator=(Buffer&&) noexcept = default;
};

// All zeros, enqueued on `stream`. On the CPU pages of it take no memory until they are written to.
// Errors: as Buffer.
Buffer zeroed(const Stream& stream, size_t bytes);

// Host memory that copies can cross asynchronously and that kernels of `device` can read and write
// directly (pinned and mapped on CUDA, plain on the CPU). Zeroed.
// Errors: out_of_memory with the bytes asked for and, from 64 MiB on, those that the host has left.
class HostBuffer : public Block {
 public:
  HostBuffer() = default;
  HostBuffer(Device device, size_t bytes);
  ~HostBuffer();
  HostBuffer(HostBuffer&&) noexcept = default;
  HostBuffer& operator=(HostBuffer&&) noexcept = default;
};

// Enqueued on `stream` (done at return on the CPU); the host side must stay valid until then. What
// is said to be device memory may be a HostBuffer of the device too.
void copy_to_device(const Stream& stream, void* device_dst, const void* host_src, size_t bytes);
void copy_to_host(const Stream& stream, void* host_dst, const void* device_src, size_t bytes);
void copy_on_device(const Stream& stream, void* dst, const void* src, size_t bytes);
// Part of a matrix to part of another in device memory: `rows` rows of `width` bytes; in both, rows
// begin `pitch` bytes apart. Enqueued on ctx.stream.
void copy_rows(const Context& ctx, void* dst, size_t dst_pitch, const void* src, size_t src_pitch,
               size_t width, size_t rows);
void fill_bytes(const Stream& stream, void* dst, int value, size_t bytes);
void fill_bytes(const Context& ctx, void* dst, int value, size_t bytes);

}  // namespace saturate
