// SPDX-License-Identifier: Apache-2.0
// Rung 9's host side: what it takes, how a problem is cut, and TMA's maps.
#include <cuda.h>
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <mutex>

#include "kernels/gemm/matmul_impl.h"
#include "kernels/gemm/sgemm/sgemm.h"
#include "kernels/gemm/sgemm/sgemm_tma.h"
#include "kernels/hopper/tensor_map.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr std::array<int, 6> kSplits = {1, 2, 3,
                                        4, 6, 8};  // 8 blocks: the largest portable cluster

bool along_k_a(const MatmulArgs& x) { return x.ta == Transpose::no; }
bool along_k_b(const MatmulArgs& x) { return x.tb == Transpose::yes; }

bool on_16_bytes(const void* p, int64_t ld) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && ld % 4 == 0;
}

cudaLaunchConfig_t config_of(const TmaKernel& kernel, unsigned blocks, cudaLaunchAttribute* cluster,
                             int splits, cudaStream_t stream) {
  cluster->id = cudaLaunchAttributeClusterDimension;
  cluster->val.clusterDim = {static_cast<unsigned>(splits), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = {blocks, 1, 1};
  config.blockDim = {static_cast<unsigned>(kernel.threads), 1, 1};
  config.dynamicSmemBytes = static_cast<size_t>(kernel.shared_bytes);
  config.stream = stream;
  config.attrs = cluster;
  config.numAttrs = splits > 1 ? 1 : 0;
  return config;
}

// A kernel, ready to run on one device, and how many of its clusters run there at the same time.
struct Loaded {
  TmaKernel kernel;
  int columns;
  std::array<int, kSplits.size()> clusters;
};

const Loaded& loaded(int device, int columns, bool a_along_k, bool b_along_k) {
  static std::mutex mutex;
  static std::map<std::array<int, 3>, Loaded>* const all = new std::map<std::array<int, 3>, Loaded>;
  const std::lock_guard lock(mutex);
  const auto [at, is_new] =
      all->try_emplace({device, columns, 2 * a_along_k + b_along_k}, Loaded{});
  Loaded& l = at->second;
  if (!is_new) return l;
  l.columns = columns;
  l.kernel = columns == 256 ? sgemm_tma_kernel_of<256>(a_along_k, b_along_k)
                            : sgemm_tma_kernel_of<128>(a_along_k, b_along_k);
  SAT_CUDA(cudaFuncSetAttribute(l.kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                l.kernel.shared_bytes));
  for (size_t i = 0; i < kSplits.size(); ++i) {
    cudaLaunchAttribute cluster;
    const auto config =
        config_of(l.kernel, 8u * static_cast<unsigned>(kSplits[i]), &cluster, kSplits[i], nullptr);
    if (kSplits[i] == 1) {
      int processors = 0, blocks = 0;
      SAT_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device));
      SAT_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
          &blocks, l.kernel.function, l.kernel.threads,
          static_cast<size_t>(l.kernel.shared_bytes)));
      l.clusters[i] = processors * blocks;
    } else {
      SAT_CUDA(cudaOccupancyMaxActiveClusters(&l.clusters[i], l.kernel.function, &config));
    }
  }
  return l;
}

struct TmaPlan {
  const Loaded* kernel = nullptr;
  int splits = 1, slots = 1;  // slots: clusters at the same time
  double cycles = std::numeric_limits<double>::max();
};

// Counts waves. A step of k of a 128 x 256 tile takes each scheduler 256 multiply-adds and about 24
// more cycles, two of 128 x 128 the same; the rest (start, end, sums of a cluster) is
// measured (LADDER.md). Depends on the shape and the device only, so results repeat.
TmaPlan tma_plan_of(const Context& ctx, const MatmulArgs& x) {
  constexpr double kStart = 3000, kSum = 2500, kSumEach = 600;
  TmaPlan best;
  for (const int columns : {256, 128}) {
    const Loaded& l = loaded(ctx.device.index, columns, along_k_a(x), along_k_b(x));
    const int64_t depth = tma_depth(columns), k_tiles = (x.k + depth - 1) / depth;
    const int64_t tiles = ((x.m + kTmaRows - 1) / kTmaRows) * ((x.n + columns - 1) / columns);
    for (size_t i = 0; i < kSplits.size(); ++i) {
      const int splits = kSplits[i];
      if (splits > k_tiles || l.clusters[i] == 0) continue;
      const double each = static_cast<double>((k_tiles + splits - 1) / splits);
      const int64_t slots = l.clusters[i], waves = tiles / slots, rest = tiles % slots;
      // Blocks of 128 columns come two a multiprocessor; one alone takes little more than half.
      const double full = each * static_cast<double>(depth) * 280;
      const double last =
          rest == 0 ? 0.0 : (columns == 128 && 2 * rest <= slots ? 0.6 : 1.0) * full;
      double cycles = kStart + static_cast<double>(waves) * full + last;
      if (splits > 1) {
        cycles +=
            static_cast<double>(waves + (rest != 0 ? 1 : 0)) * (kStart + kSum + kSumEach * splits);
      }
      if (cycles < best.cycles) best = {&l, splits, l.clusters[i], cycles};
    }
  }
  return best;
}

// Boxes of `outer` rows of a stored matrix (rows, cols). Along k a row of a box is 128 bytes and
// swizzled; across k it is as wide as the tile.
CUtensorMap map_of(const char* name, const void* data, int64_t rows, int64_t cols, int64_t ld,
                   bool along_k, int width, int depth) {
  CUtensorMap map;
  const cuuint64_t size[] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t pitch[] = {static_cast<cuuint64_t>(ld) * sizeof(float)};
  const auto wide = static_cast<cuuint32_t>(width), deep = static_cast<cuuint32_t>(depth);
  const cuuint32_t box[] = {along_k ? deep : wide, along_k ? wide : deep}, steps[] = {1, 1};
  const CUresult result =
      wgmma::encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, const_cast<void*>(data), size,
                       pitch, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                       !along_k      ? CU_TENSOR_MAP_SWIZZLE_NONE
                       : depth == 32 ? CU_TENSOR_MAP_SWIZZLE_128B
                                     : CU_TENSOR_MAP_SWIZZLE_64B,
                       CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw Error(Errc::device, "matmul",
                fmt::format("cuTensorMapEncodeTiled returned {} for {} stored as ({}, {}) with "
                            "leading dimension {}",
                            static_cast<int>(result), name, rows, cols, ld));
  }
  return map;
}

}  // namespace

Fit sgemm_tma_cuda_fits(const Context& ctx, const MatmulArgs& x) noexcept {
  if (x.ab_type != DType::f32 || x.d_type != DType::f32) return {"only f32 in and out"};
  if (x.allow_tf32) return {"TF32 is allowed: tensor cores are faster"};
  if (x.k > 0 && (!on_16_bytes(x.a, x.lda) || !on_16_bytes(x.b, x.ldb)))
    return {"rows of a and b must start on 16 bytes for TMA"};
  const int64_t limit = std::numeric_limits<int32_t>::max() / 2;
  if (std::max({x.m, x.n, x.k}) > limit || (x.m / kTmaRows + 1) * (x.n / 128 + 1) > limit)
    return {"more than 2^30 rows, columns or tiles"};
  return wgmma::device_fits(ctx);
}

void sgemm_tma_cuda(const Context& ctx, const MatmulArgs& x) {
  if (x.k == 0) return matmul_start_cuda(ctx, x);
  const TmaPlan plan = tma_plan_of(ctx, x);
  const bool a_along = along_k_a(x), b_along = along_k_b(x);
  const int columns = plan.kernel->columns, depth = tma_depth(columns);
  CUtensorMap map_a =
      map_of("a", x.a, a_along ? x.m : x.k, a_along ? x.k : x.m, x.lda, a_along, kTmaRows, depth);
  CUtensorMap map_b =
      map_of("b", x.b, b_along ? x.n : x.k, b_along ? x.k : x.n, x.ldb, b_along, columns, depth);
  const auto up = [](int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); };
  TmaProblem p{.c = static_cast<const float*>(x.c),
               .d = static_cast<float*>(x.d),
               .bias = static_cast<const float*>(x.bias),
               .ldc = x.ldc,
               .ldd = x.ldd,
               .m = static_cast<int>(x.m),
               .n = static_cast<int>(x.n),
               .k_tiles = up(x.k, depth),
               .down = up(x.m, kTmaRows),
               .across = up(x.n, columns),
               .splits = plan.splits,
               .alpha = x.alpha,
               .beta = x.beta,
               .plain = x.beta == 0.0f && x.bias == nullptr && on_16_bytes(x.d, x.ldd)};
  const int tiles = p.down * p.across;
  // One wave of blocks that go on to their next tile; clusters have one tile each.
  const int clusters = plan.splits > 1 ? tiles : std::min(tiles, plan.slots);
  cudaLaunchAttribute cluster;
  const auto config = config_of(plan.kernel->kernel,
                                static_cast<unsigned>(clusters) * static_cast<unsigned>(p.splits),
                                &cluster, p.splits, cuda::stream_of(ctx));
  void* arguments[] = {&map_a, &map_b, &p};
  SAT_CUDA(cudaLaunchKernelExC(&config, plan.kernel->kernel.function, arguments));
}

}  // namespace saturate::kernels
