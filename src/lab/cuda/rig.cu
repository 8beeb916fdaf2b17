// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <utility>

#include "lab/cuda/rig.h"
#include "runtime/cuda/check.h"

namespace saturate::lab {
namespace {

__global__ void lab_arithmetic_kernel(float* x, int rounds) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  float value = x[i];
  for (int r = 0; r < rounds; ++r) {
#pragma unroll
    for (int k = 0; k < 16; ++k) value = fmaf(value, 0.5f, 1.0f);
  }
  x[i] = value;
}

__global__ void lab_elementwise_kernel(const float4* x, float4* y, size_t count) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < count;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    const float4 v = x[i];
    y[i] = make_float4(0.5f * v.x + 1, 0.5f * v.y + 1, 0.5f * v.z + 1, 0.5f * v.w + 1);
  }
}

cudaStream_t native(const Stream& s) { return static_cast<cudaStream_t>(s.native()); }

}  // namespace

Buffer::Buffer(Where where, size_t bytes) : bytes_(bytes), where_(where) {
  if (where == Where::device) {
    SAT_CUDA(cudaMalloc(&data_, bytes));
  } else {
    SAT_CUDA(cudaMallocHost(&data_, bytes));
  }
}

Buffer::~Buffer() {
  if (data_ == nullptr) return;
  if (where_ == Where::device) {
    cudaFree(data_);
  } else {
    cudaFreeHost(data_);
  }
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_), where_(other.where_) {}

void Program::finish() { SAT_CUDA(cudaDeviceSynchronize()); }

void launch_arithmetic(const Stream& stream, const Buffer& x, int blocks, int rounds) {
  lab_arithmetic_kernel<<<blocks, kBlockThreads, 0, native(stream)>>>(x.floats(), rounds);
  SAT_CUDA_LAUNCHED("lab_arithmetic_kernel");
}

void launch_elementwise(const Stream& stream, const Buffer& x, const Buffer& y) {
  lab_elementwise_kernel<<<kFullGrid, kBlockThreads, 0, native(stream)>>>(
      static_cast<const float4*>(x.data()), static_cast<float4*>(y.data()),
      x.bytes() / sizeof(float4));
  SAT_CUDA_LAUNCHED("lab_elementwise_kernel");
}

void copy_to_device(const Stream& stream, const Buffer& to, const void* from, size_t bytes) {
  SAT_CUDA(cudaMemcpyAsync(to.data(), from, bytes, cudaMemcpyHostToDevice, native(stream)));
}

void burn(int64_t ns) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(ns);
  while (std::chrono::steady_clock::now() < until) {
  }
}

}  // namespace saturate::lab
