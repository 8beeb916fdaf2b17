// SPDX-License-Identifier: Apache-2.0
#include "kernels/hopper/tensor_map.h"

#include <fmt/format.h>

#include "runtime/cuda/check.h"

namespace saturate::kernels::wgmma {

using Encode = decltype(&cuTensorMapEncodeTiled);
Encode encoder() {
  static const Encode found = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t code = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000,
                                                              cudaEnableDefault, &result);
    if (code != cudaSuccess) static_cast<void>(cudaGetLastError());
    return code == cudaSuccess && result == cudaDriverEntryPointSuccess
               ? reinterpret_cast<Encode>(f)
               : nullptr;
  }();
  return found;
}

Fit device_fits(const Context& ctx) noexcept {
  const Capability& gpu = capability_of(ctx);
  if (gpu.major != 9) return {"needs compute capability 9.0"};
  if (!gpu.tensor_maps) return {"the driver has no tensor maps"};
  return {};
}

int blocks_of(const Context& ctx) { return capability_of(ctx).multiprocessors / 2 * 2; }

namespace {

CUtensorMapDataType code_of(DType type) {
  if (type == DType::f32) return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  return type == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
}

// Dimensions from the innermost, of which a box takes 128 bytes; strides of the outer ones in
// elements.
CUtensorMap encoded(const void* data, CUtensorMapDataType type, int dimensions,
                    const cuuint64_t* sizes, const cuuint64_t* strides, int box_rows) {
  const bool half =
      type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 || type == CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const cuuint64_t size = half ? 2 : 4;
  CUtensorMap map;
  cuuint64_t bytes[2];
  for (int i = 0; i + 1 < dimensions; ++i) bytes[i] = strides[i] * size;
  const cuuint32_t step[3] = {1, 1, 1};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(128 / size), static_cast<cuuint32_t>(box_rows),
                             1};
  const CUresult code =
      encoder()(&map, type, static_cast<cuuint32_t>(dimensions), const_cast<void*>(data), sizes,
                bytes, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS) {
    throw Error(Errc::device, "matmul",
                fmt::format("the driver refused a tensor map of rows of {} elements, {} apart, {} "
                            "of them: code {}",
                            sizes[0], strides[0], sizes[1], static_cast<int>(code)));
  }
  return map;
}

CUtensorMap matrix(const void* data, CUtensorMapDataType type, int64_t rows, int64_t cols,
                   int64_t ld, int box_rows) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(ld)};
  return encoded(data, type, 2, sizes, strides, box_rows);
}

}  // namespace

CUtensorMap map_of(const void* data, DType type, int64_t rows, int64_t cols, int64_t ld,
                   int box_rows) {
  return matrix(data, code_of(type), rows, cols, ld, box_rows);
}

CUtensorMap tf32_map_of(const void* data, int64_t rows, int64_t cols, int64_t ld, int box_rows) {
  return matrix(data, CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, rows, cols, ld, box_rows);
}

CUtensorMap map_of_stack(const void* data, DType type, int64_t matrices, int64_t rows, int64_t cols,
                         int box_rows) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows),
                              static_cast<cuuint64_t>(matrices)};
  const cuuint64_t strides[] = {sizes[0], sizes[0] * sizes[1]};
  return encoded(data, code_of(type), 3, sizes, strides, box_rows);
}

}  // namespace saturate::kernels::wgmma
