// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/blas_library.h"

#include <cblas.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

static_assert(sizeof(blasint) == sizeof(int));

struct Library {
  decltype(&cblas_sgemm) sgemm = nullptr;
  decltype(&cblas_dgemm) dgemm = nullptr;
  decltype(&openblas_set_num_threads) set_num_threads = nullptr;
  decltype(&openblas_get_config) get_config = nullptr;
  // Of its own, exported and undocumented; null in a build that hides them.
  void* (*memory_alloc)(int position) = nullptr;
  void (*memory_free)(void* buffer) = nullptr;
};

constexpr size_t kBufferBytes = size_t{128} << 20;  // BUFFER_SIZE of OpenBLAS on x86-64
constexpr size_t kSlackBytes = size_t{16} << 20;    // for what other threads take meanwhile

// Sets a variable and puts back what it was.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    ::setenv(name, value, 1);
  }
  ~Variable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

// The kernels that a library older than the processor does not know to be for it: 0.3.21 takes a Xeon of the
// fifth generation for one of 2004, at a quarter of its pace. Null where it has chosen newer ones.
const char* better_core(void* handle) {
  const auto name =
      reinterpret_cast<decltype(&openblas_get_corename)>(::dlsym(handle, "openblas_get_corename"));
  if (name == nullptr || std::string_view(name()) != "Prescott") return nullptr;
  if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl"))
    return "SkylakeX";
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? "Haswell" : nullptr;
}

Library load() {
  // Threads are ours (parallel_for); a second pool inside BLAS would fight it for the cores.
  const Variable one_thread("OPENBLAS_NUM_THREADS", "1");
  std::string why;
  void* handle = nullptr;
  for (const char* name : {"libopenblas.so.0", SATURATE_OPENBLAS_PATH}) {
    handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr && std::getenv("OPENBLAS_CORETYPE") == nullptr) {
      if (const char* const core = better_core(handle)) {
        const Variable chosen("OPENBLAS_CORETYPE", core);
        ::dlclose(handle);
        handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
      }
    }
    if (handle != nullptr) break;
    const char* message = ::dlerror();
    if (why.empty()) why = message ? message : "unknown cause";
  }
  const bool no_room = why.find("failed to map") != std::string::npos ||
                       why.find("cannot allocate") != std::string::npos;
  if (handle == nullptr && no_room)
    throw Error(Errc::out_of_memory, "OpenBLAS",
                fmt::format("{}; raise the limit of memory (ulimit -v)", why));
  if (handle == nullptr)
    throw Error(Errc::unsupported, "OpenBLAS",
                fmt::format("{}; install OpenBLAS (Debian: libopenblas0)", why));
  Library blas;
  const auto find = [handle](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
    return function != nullptr;
  };
  if (!find(blas.sgemm, "cblas_sgemm") || !find(blas.dgemm, "cblas_dgemm") ||
      !find(blas.set_num_threads, "openblas_set_num_threads") ||
      !find(blas.get_config, "openblas_get_config"))
    throw Error(Errc::unsupported, "OpenBLAS",
                "libopenblas.so.0 lacks cblas_sgemm; install the whole of OpenBLAS (Debian: "
                "libopenblas0)");
  find(blas.memory_alloc, "blas_memory_alloc");
  find(blas.memory_free, "blas_memory_free");
  blas.set_num_threads(1);  // where something else in this process had loaded it before
  return blas;
}

bool has_room() {
  void* const room = ::mmap(nullptr, kBufferBytes + kSlackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) return false;
  ::munmap(room, kBufferBytes + kSlackBytes);
  return true;
}

// Takes as many of OpenBLAS's buffers as `threads` need at once, and gives them back: they stay its
// own.
void reserve(const Library& blas, int threads) {
  if (blas.memory_alloc == nullptr || blas.memory_free == nullptr) return;
  std::vector<void*> buffers;
  bool enough = true;
  for (int i = 0; i < threads && (enough = has_room()); ++i)
    buffers.push_back(blas.memory_alloc(0));
  for (void* buffer : buffers) blas.memory_free(buffer);
  if (!enough)
    throw Error(Errc::out_of_memory, "OpenBLAS",
                fmt::format("it needs 128 MiB of address space for each of {} threads and there is "
                            "room for {}; raise the limit of memory (ulimit -v), or use fewer "
                            "threads (SATURATE_THREADS=1)",
                            threads, buffers.size()));
}

const Library& library() {
  static const Library blas = load();
  return blas;
}

constexpr CBLAS_TRANSPOSE transposed(bool yes) { return yes ? CblasTrans : CblasNoTrans; }

}  // namespace

void prepare_blas() {
  static std::mutex mutex;
  static std::atomic<int> reserved{0};
  const int threads = cpu_threads();
  if (reserved.load(std::memory_order_acquire) >= threads) return;
  const std::lock_guard lock(mutex);
  if (reserved.load(std::memory_order_relaxed) >= threads) return;
  reserve(library(), threads);
  reserved.store(threads, std::memory_order_release);
}

void blas_gemm(const BlasShape& s, float alpha, const float* a, const float* b, float beta,
               float* d) {
  library().sgemm(CblasRowMajor, transposed(s.ta), transposed(s.tb), s.m, s.n, s.k, alpha, a, s.lda,
                  b, s.ldb, beta, d, s.ldd);
}
void blas_gemm(const BlasShape& s, double alpha, const double* a, const double* b, double beta,
               double* d) {
  library().dgemm(CblasRowMajor, transposed(s.ta), transposed(s.tb), s.m, s.n, s.k, alpha, a, s.lda,
                  b, s.ldb, beta, d, s.ldd);
}

int64_t blas_small_product() {
  static const int64_t limit = [] {
    const std::string_view core = library().get_config();
    for (const char* name : {"SkylakeX", "Cooperlake", "SapphireRapids"})
      if (core.find(name) != std::string_view::npos) return int64_t{100} * 100 * 100;
    return int64_t{0};
  }();
  return limit;
}

bool blas_keeps_rows() noexcept {
  if (!__builtin_cpu_supports("avx512f")) return false;
  static const bool keeps = [] {
    try {
      return blas_small_product() > 0;
    } catch (const std::exception&) {
      return true;
    }
  }();
  return keeps;
}

std::string blas_description() {
  try {
    return library().get_config();
  } catch (const Error&) {
    return "";
  }
}

}  // namespace saturate::kernels
