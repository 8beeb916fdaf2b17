// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <thread>

#include "base/cache_folder.h"
#include "base/log.h"
#include "kernels/gemm/tune/sgemm_jit.h"
#include "kernels/gemm/tune/table.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

struct Loaded {
  TileSet tile;
  const void* kernel = nullptr;  // a cudaKernel_t
  const char* refusal = nullptr;
};

// Device, alignment and configuration to kernel. Never destroyed: at exit the driver may be gone.
using LoadedKey = std::tuple<int, bool, std::string>;
struct Kernels {
  std::mutex mutex;
  std::map<LoadedKey, Loaded> loaded;
};
Kernels& kernels() {
  static Kernels* const instance = new Kernels;
  return *instance;
}

LoadedKey key_of(const Context& ctx, const MatmulArgs& x, const std::string& config) {
  return {ctx.device.index, gemm_key(x).aligned, config};
}

// sm_90a and the like: instructions that exist on this very chip only are allowed.
std::string arch_of(Device device) {
  const DeviceInfo info = device_info(device);
  return fmt::format("sm_{}{}{}", info.compute_major, info.compute_minor,
                     info.compute_major >= 9 ? "a" : "");
}

std::string cubin_folder() {
  const std::string folder = user_cache_folder();
  return folder.empty() ? "" : folder + "/cubin";
}

Loaded load(Device device, const TileSet& tile, const NvrtcKernel& compiled) {
  Loaded result{tile, nullptr, nullptr};
  cudaLibrary_t library = nullptr;
  cudaKernel_t kernel = nullptr;
  SAT_CUDA(cudaLibraryLoadData(&library, compiled.cubin.data(), nullptr, nullptr, 0, nullptr,
                               nullptr, 0));
  SAT_CUDA(cudaLibraryGetKernel(&kernel, library, compiled.symbol.c_str()));
  cudaFuncAttributes attributes{};
  const void* const function = reinterpret_cast<const void*>(kernel);
  SAT_CUDA(cudaFuncGetAttributes(&attributes, function));
  if (attributes.localSizeBytes > 0) {
    result.refusal = "the compiled kernel spills registers to local memory";
    return result;
  }
  SAT_CUDA(cudaKernelSetAttributeForDevice(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           static_cast<int>(tile.shared_bytes()), device.index));
  // Left to itself the driver may leave room for one block where two would fit: seen on an H200 as
  // half the speed of blocks of 98 KB.
  SAT_CUDA(cudaKernelSetAttributeForDevice(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                           cudaSharedmemCarveoutMaxShared, device.index));
  result.kernel = function;
  return result;
}

// Compiles and loads; the reason of a failure is logged, since a Fit holds static text only.
Loaded make(Device device, bool aligned, const std::string& config) {
  const std::optional<TileSet> tile = parse_tile_set(config);
  if (!tile) return {{}, nullptr, "the configuration is no parameter set of this kernel"};
  if (!tile_refusal(*tile, chip_limits(device)).empty()) {
    return {*tile, nullptr, "the parameter set exceeds this GPU (saturate tune gemm --explain)"};
  }
  try {
    return load(device, *tile, compile_sgemm_tile(cubin_folder(), arch_of(device), *tile, aligned));
  } catch (const Error& e) {
    if (dispatch_is_verbose()) log_info(e.what());
    return {*tile, nullptr,
            e.code() == Errc::unsupported ? nvrtc_fits().reason : "it does not compile or load"};
  }
}

}  // namespace

ChipLimits chip_limits(Device device) {
  static std::mutex mutex;
  static auto* const known = new std::map<int, ChipLimits>;
  const std::lock_guard lock(mutex);
  if (const auto at = known->find(device.index); at != known->end()) return at->second;
  const auto get = [&](cudaDeviceAttr what) {
    int v = 0;
    SAT_CUDA(cudaDeviceGetAttribute(&v, what, device.index));
    return v;
  };
  ChipLimits c;
  c.multiprocessors = get(cudaDevAttrMultiProcessorCount);
  c.shared_per_block = get(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  c.shared_per_multiprocessor = get(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  c.registers_per_multiprocessor = get(cudaDevAttrMaxRegistersPerMultiprocessor);
  c.threads_per_multiprocessor = get(cudaDevAttrMaxThreadsPerMultiProcessor);
  c.l2_bytes = get(cudaDevAttrL2CacheSize);
  const int major = get(cudaDevAttrComputeCapabilityMajor);
  const int minor = get(cudaDevAttrComputeCapabilityMinor);
  // Clock and bandwidth of a chip other than the H200 scale the model's times but hardly its order.
  c.fma_per_clock = (major == 8 && minor == 0) || major == 7 ? 64 : 128;
  return known->emplace(device.index, c).first->second;
}

Fit sgemm_jit_fits(const Context& ctx, const MatmulArgs& x) noexcept {
  if (!ctx.device.is_cuda()) return {"runs on GPUs only"};
  if (x.ab_type != DType::f32 || x.d_type != DType::f32) return {"f32 in and out only"};
  if (x.ta == Transpose::yes || x.tb == Transpose::yes) return {"operands must not be transposed"};
  if (x.bias != nullptr) return {"no bias"};
  if (x.batch != 1 || !x.epilogue.is_plain()) return {"no batch and no epilogue"};
  return {};
}

std::vector<std::string> sgemm_jit_configurations(const Context& ctx, const MatmulArgs& x, Search) {
  if (!nvrtc_fits()) return {};
  const ChipLimits chip = chip_limits(ctx.device);
  std::vector<std::pair<double, std::string>> all;
  for (const TileSet& t : valid_tiles(chip)) {
    all.emplace_back(predict_sgemm_ms(t, chip, x.m, x.n, x.k), text_of(t));
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> names;
  for (auto& [ms, name] : all) names.push_back(std::move(name));
  return names;
}

void sgemm_jit_prepare(const Context& ctx, const MatmulArgs& x,
                       std::span<const std::string> configs, const TuneProgress& progress) {
  std::vector<std::string> wanted;
  Kernels& all = kernels();
  {
    const std::lock_guard lock(all.mutex);
    for (const std::string& c : configs) {
      if (!all.loaded.contains(key_of(ctx, x, c))) wanted.push_back(c);
    }
  }
  // Threads of our own: a compilation takes a second, and parallel_for() waits without progress.
  std::atomic<size_t> next{0}, done{0};
  const size_t count =
      std::min<size_t>(wanted.size(), std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::jthread> workers;
  for (size_t i = 0; i < count; ++i) {
    workers.emplace_back([&] {
      for (size_t at; (at = next.fetch_add(1)) < wanted.size(); done.fetch_add(1)) {
        Loaded made = make(ctx.device, gemm_key(x).aligned, wanted[at]);
        const std::lock_guard lock(all.mutex);
        all.loaded.emplace(key_of(ctx, x, wanted[at]), std::move(made));
      }
    });
  }
  while (done.load() < wanted.size()) {
    progress(done.load(), wanted.size());
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  workers.clear();
  if (!wanted.empty()) progress(wanted.size(), wanted.size());
}

Fit sgemm_jit_ready(const Context& ctx, const MatmulArgs& x, const std::string& config) {
  Kernels& all = kernels();
  const LoadedKey key = key_of(ctx, x, config);
  {
    const std::lock_guard lock(all.mutex);
    if (const auto at = all.loaded.find(key); at != all.loaded.end()) return {at->second.refusal};
  }
  Loaded made = make(ctx.device, std::get<1>(key), config);
  const std::lock_guard lock(all.mutex);
  return {all.loaded.emplace(key, std::move(made)).first->second.refusal};
}

void sgemm_jit_run(const Context& ctx, const MatmulArgs& x, const std::string& config) {
  Loaded one;
  {
    Kernels& all = kernels();
    const std::lock_guard lock(all.mutex);
    one = all.loaded.at(key_of(ctx, x, config));
  }
  const TileSet& t = one.tile;
  long long m = x.m, n = x.n, k = x.k, lda = x.lda, ldb = x.ldb, ldd = x.ldd;
  long long ldc = x.c == nullptr ? x.ldd : x.ldc;
  float alpha = x.alpha, beta = x.beta;
  const void *a = x.a, *b = x.b, *c = x.c == nullptr ? x.d : x.c;
  void* d = x.d;
  void* parameters[] = {&m, &n, &k, &alpha, &a, &lda, &b, &ldb, &beta, &c, &ldc, &d, &ldd};
  const int64_t blocks = ((x.m + t.bm - 1) / t.bm) * ((x.n + t.bn - 1) / t.bn);
  SAT_CUDA(cudaLaunchKernel(one.kernel, dim3(static_cast<unsigned>(blocks)),
                            dim3(static_cast<unsigned>(t.threads())), parameters,
                            static_cast<size_t>(t.shared_bytes()), cuda::stream_of(ctx)));
}

double sgemm_jit_predict(const Context& ctx, const MatmulArgs& x, const std::string& config) {
  const std::optional<TileSet> tile = parse_tile_set(config);
  return tile ? predict_sgemm_ms(*tile, chip_limits(ctx.device), x.m, x.n, x.k) : -1.0;
}

}  // namespace saturate::kernels
