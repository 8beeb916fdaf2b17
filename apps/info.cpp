// SPDX-License-Identifier: Apache-2.0
// `saturate info`: what this build and this machine can do, and what follows from it.
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "apps/commands.h"
#include "base/counted.h"
#include "base/features.h"
#include "base/text.h"
#include "kernels/gemm/blas_library.h"
#include "kernels/support.h"
#include "runtime/device.h"
#include "runtime/parallel_for.h"

namespace saturate::apps {
namespace {

// A shared library searched for as the loader would; stays loaded until the program ends.
struct Library {
  explicit Library(const char* name) : handle(dlopen(name, RTLD_LAZY | RTLD_LOCAL)) {}
  template <class Function>
  Function* symbol(const char* name) const {
    return handle ? reinterpret_cast<Function*>(dlsym(handle, name)) : nullptr;
  }
  void* handle;
};

std::string driver_version() {
  const Library library("libcuda.so.1");
  int version = 0;
  if (auto* get = library.symbol<int(int*)>("cuDriverGetVersion")) get(&version);
  return version ? fmt::format("for CUDA {}.{}", version / 1000, version % 1000 / 10) : "";
}

std::string cublaslt_version() {
  for (const char* name : {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}) {
    if (auto* get = Library(name).symbol<size_t()>("cublasLtGetVersion")) {
      const size_t v = get();
      return fmt::format("{}.{}.{}", v / 10000, v % 10000 / 100, v % 100);
    }
  }
  return "";
}

std::string nccl_version() {
  int v = 0;
  if (auto* get = Library("libnccl.so.2").symbol<int(int*)>("ncclGetVersion")) get(&v);
  return v ? fmt::format("{}.{}.{}", v / 10000, v % 10000 / 100, v % 100) : "";
}

std::string mpi_version() {
  for (const char* name : {"libmpi.so.40", "libmpi.so"}) {
    if (auto* get = Library(name).symbol<int(char*, int*)>("MPI_Get_library_version")) {
      char text[8192] =
          {};  // above MPI_MAX_LIBRARY_VERSION_STRING of Open MPI (256) and MPICH (8192)
      int length = 0;
      get(text, &length);
      const std::string all(text, static_cast<size_t>(length));
      return all.substr(0, all.find_first_of(",\n"));
    }
  }
  return "";
}

void line(const char* name, const std::string& found, const std::string& meaning) {
  fmt::print("  {:<14} {:<34} {}\n", name, found.empty() ? "not found" : found, meaning);
}

void print_devices() {
  fmt::print("devices\n");
  const DeviceInfo cpu = device_info(Device{});
  line("cpu", fmt::format("{}, {}", cpu.name, counted(cpu_threads(), "thread")),
       fmt::format("{} of {} free; SATURATE_THREADS sets the threads",
                   format_bytes(static_cast<double>(cpu.free_bytes)),
                   format_bytes(static_cast<double>(cpu.memory_bytes))));
  const int gpus = cuda_device_count();
  for (int i = 0; i < gpus; ++i) {
    const DeviceInfo gpu = device_info(Device{DeviceKind::cuda, i});
    const bool bf16 = gpu.compute_major >= 8;
    line(fmt::format("cuda:{}", i).c_str(),
         fmt::format("{}, sm_{}{}, {} SMs", gpu.name, gpu.compute_major, gpu.compute_minor,
                     gpu.multiprocessors),
         fmt::format("{} of {} free; --precision auto takes {}",
                     format_bytes(static_cast<double>(gpu.free_bytes)),
                     format_bytes(static_cast<double>(gpu.memory_bytes)), bf16 ? "bf16" : "fp16"));
  }
  if (gpus > 0) return;
  line("cuda", "no GPU",
       SATURATE_WITH_CUDA ? "everything runs on the CPU; is the driver installed? (nvidia-smi)"
                          : "this build is for the CPU; build with the CUDA toolkit to use a GPU");
}

void print_libraries() {
  fmt::print("libraries\n");
  const std::string driver = driver_version();
  line("CUDA driver", driver, driver.empty() ? "no GPU can be used" : "GPUs can be used");
  if (SATURATE_WITH_CUDA) {
    const std::string blas = cublaslt_version();
    line("cuBLASLt", blas, blas.empty() ? "no matrix products on GPUs" : "matrix products on GPUs");
  } else {
    line("cuBLASLt", "not in this build", "");
  }
  if (SATURATE_WITH_NCCL) {
    const std::string nccl = nccl_version();
    line("NCCL", nccl, nccl.empty() ? "one GPU only" : "several GPUs: mpirun -n N or torchrun");
  } else {
    line("NCCL", "not in this build", "one GPU only");
  }
  if (SATURATE_WITH_MPI) {
    const std::string mpi = mpi_version();
    line("MPI", mpi,
         mpi.empty() ? "one process only" : "several processes: mpirun -n N saturate train ...");
  } else {
    line("MPI", "not in this build", "no mpirun; install libopenmpi-dev and build again");
  }
  line("Gloo", SATURATE_WITH_GLOO ? "in this build" : "not in this build",
       SATURATE_WITH_GLOO ? "several processes on CPUs: torchrun, or srun without MPI"
                          : "no torchrun on CPUs; install libgloo-dev and build again");
  const std::string blas = kernels::blas_description();
  line("OpenBLAS", blas.substr(0, blas.find(" DYNAMIC")),
       blas.empty() ? "no matrix products on the CPU" : "matrix products on the CPU");
  line("SentencePiece", SATURATE_SENTENCEPIECE_VERSION, "tokenizers are trained and loaded");
}

}  // namespace

int run_info(bool all_kernels) {
  if (all_kernels) {
    fmt::print("{}", kernels::support_tables());
    return 0;
  }
  fmt::print("saturate {}\n", SATURATE_VERSION);
  fmt::print("build\n");
  line("type", SATURATE_BUILD_TYPE, "");
  line("CUDA", SATURATE_WITH_CUDA ? "for sm " SATURATE_CUDA_ARCHITECTURES : "no",
       SATURATE_WITH_CUDA ? "GPU code of these architectures is inside"
                          : "CPU only; everything but the GPU's speed works");
  print_devices();
  print_libraries();
  return 0;
}

}  // namespace saturate::apps
