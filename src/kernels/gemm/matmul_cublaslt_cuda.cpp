// SPDX-License-Identifier: Apache-2.0
// cuBLASLt reads matrices by columns, so a row-major product runs as D^T = op(B)^T op(A)^T: its
// first operand is our B, its second our A, and m and n change places.
#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gemm/matmul_impl.h"
#include "runtime/cuda/check.h"

namespace saturate::kernels {
namespace {

constexpr int kCandidates = 8, kMostCandidates = 64;

void lt_check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(Errc::device, "matmul",
              fmt::format("{} returned {}", call, cublasLtGetStatusName(status)));
}
#define LT_CHECK(call) lt_check((call), #call)

std::string text_of(const MatmulArgs& x) {
  return fmt::format("(m {}, n {}, k {}, a {}{}, b {}{}, d {})", x.m, x.n, x.k, name_of(x.ab_type),
                     x.ta == Transpose::yes ? " transposed" : "", name_of(x.ab_type),
                     x.tb == Transpose::yes ? " transposed" : "", name_of(x.d_type));
}

cudaDataType_t cuda_type(DType t) {
  return t == DType::bf16 ? CUDA_R_16BF : (t == DType::f16 ? CUDA_R_16F : CUDA_R_32F);
}

// A problem and a configuration of it, "" for cuBLASLt's first choice.
using Key = std::pair<MatmulProblemKey, std::string>;

struct Algorithm {
  cublasLtMatmulAlgo_t algo;
  size_t workspace_bytes;
};

// An algorithm as text: its eight words in hexadecimal. NVIDIA documents that these bytes can be
// stored and used again with the same version of the library.
std::string text_of(const cublasLtMatmulAlgo_t& algo) {
  std::string text;
  for (const uint64_t word : algo.data)
    text += fmt::format("{}{:x}", text.empty() ? "" : ".", word);
  return text;
}

std::optional<cublasLtMatmulAlgo_t> parse_algorithm(const std::string& text) {
  cublasLtMatmulAlgo_t algo;
  const char* at = text.c_str();
  for (uint64_t& word : algo.data) {
    char* end = nullptr;
    word = std::strtoull(at, &end, 16);
    if (end == at) return {};
    at = *end == '.' ? end + 1 : end;
  }
  if (text_of(algo) != text) return {};
  return algo;
}

constexpr const char* kRefused = "cuBLASLt does not take this algorithm for this problem";

// One handle per device, and what cuBLASLt has answered: the same question has the same answer.
// Never destroyed: at exit the driver may already be gone.
struct Library {
  std::mutex mutex;
  std::map<int, cublasLtHandle_t> handles;
  std::map<Key, std::optional<Algorithm>> known;  // nothing: it does not take that algorithm

  cublasLtHandle_t handle(int device) {
    const std::lock_guard lock(mutex);
    cublasLtHandle_t& h = handles[device];
    if (h == nullptr) LT_CHECK(cublasLtCreate(&h));
    return h;
  }
};
Library& library() {
  static Library* const instance = new Library;
  return *instance;
}

// Descriptors of one problem; plain data, nothing to free.
class Problem {
 public:
  Problem(const Context& ctx, const MatmulArgs& x)
      : ctx_(ctx), x_(x), handle_(library().handle(ctx.device.index)) {
    const bool tf32 = x.ab_type == DType::f32 && x.allow_tf32;
    LT_CHECK(cublasLtMatmulDescInit(
        &desc_, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, x.tb == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(CUBLASLT_MATMUL_DESC_TRANSB, x.ta == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (x.bias != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, x.bias);
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(x.ab_type));
    }
    layout(first_, x.tb == Transpose::yes, x.n, x.k, x.ldb, x.ab_type, x.stride_b);
    layout(second_, x.ta == Transpose::yes, x.k, x.m, x.lda, x.ab_type, x.stride_a);
    layout(c_, false, x.n, x.m, x.ldc, x.d_type, x.stride_c);
    layout(d_, false, x.n, x.m, x.ldd, x.d_type, x.stride_d);
  }

  // Best first by cuBLASLt's estimate; at least one. Errors: unsupported.
  std::vector<Algorithm> candidates(int wanted) {
    cublasLtMatmulPreferenceOpaque_t preference;
    LT_CHECK(cublasLtMatmulPreferenceInit(&preference));
    const auto prefer = [&preference](cublasLtMatmulPreferenceAttributes_t what, auto value) {
      LT_CHECK(cublasLtMatmulPreferenceSetAttribute(&preference, what, &value, sizeof(value)));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(ctx_.workspace_bytes));
    // Split sums meet in fp32 in the workspace, never in the 16-bit output.
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, pointer_alignment(x_.b));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, pointer_alignment(x_.a));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, pointer_alignment(x_.c));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, pointer_alignment(x_.d));
    std::array<cublasLtMatmulHeuristicResult_t, kMostCandidates> results;
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle_, &desc_, &first_, &second_, &c_, &d_, &preference, wanted, results.data(), &found);
    std::vector<Algorithm> algos;
    for (int i = 0; i < found; ++i) {
      const auto& r = results[static_cast<size_t>(i)];
      if (r.state == CUBLAS_STATUS_SUCCESS) algos.push_back({r.algo, r.workspaceSize});
    }
    if (algos.empty()) {
      throw Error(Errc::unsupported, "matmul",
                  fmt::format("cuBLASLt offers no algorithm for {} ({})", text_of(x_),
                              cublasLtGetStatusName(status)));
    }
    return algos;
  }

  // `algo` with the workspace it takes; nothing when the library does not run it on this problem
  // within the context's.
  std::optional<Algorithm> accepted(const cublasLtMatmulAlgo_t& algo) {
    cublasLtMatmulHeuristicResult_t result;
    if (cublasLtMatmulAlgoCheck(handle_, &desc_, &first_, &second_, &c_, &d_, &algo, &result) !=
            CUBLAS_STATUS_SUCCESS ||
        result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > ctx_.workspace_bytes)
      return {};
    return Algorithm{algo, result.workspaceSize};
  }

  void run(const cublasLtMatmulAlgo_t& algo) {
    LT_CHECK(cublasLtMatmul(handle_, &desc_, &x_.alpha, x_.b, &first_, x_.a, &second_, &x_.beta,
                            x_.c, &c_, x_.d, &d_, &algo, ctx_.workspace, ctx_.workspace_bytes,
                            cuda::stream_of(ctx_)));
  }

 private:
  template <class T>
  void set(cublasLtMatmulDescAttributes_t what, T value) {
    LT_CHECK(cublasLtMatmulDescSetAttribute(&desc_, what, &value, sizeof(value)));
  }
  // op() of the matrix is (rows, cols) by columns.
  void layout(cublasLtMatrixLayoutOpaque_t& l, bool transposed, int64_t rows, int64_t cols,
              int64_t ld, DType type, int64_t stride) {
    if (transposed) std::swap(rows, cols);
    LT_CHECK(cublasLtMatrixLayoutInit(&l, cuda_type(type), static_cast<uint64_t>(rows),
                                      static_cast<uint64_t>(cols), ld));
    if (x_.batch == 1) return;
    const auto count = static_cast<int32_t>(x_.batch);
    LT_CHECK(cublasLtMatrixLayoutSetAttribute(&l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                              sizeof(count)));
    LT_CHECK(cublasLtMatrixLayoutSetAttribute(&l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                              &stride, sizeof(stride)));
  }

  const Context& ctx_;
  const MatmulArgs& x_;
  cublasLtHandle_t handle_;
  cublasLtMatmulDescOpaque_t desc_;
  cublasLtMatrixLayoutOpaque_t first_, second_, c_, d_;
};

// What cuBLASLt is asked: it takes a bias in d_type only, so otherwise the bias enters through C.
MatmulArgs without_mixed_bias(const MatmulArgs& args) {
  MatmulArgs x = args;
  if (x.bias != nullptr && x.d_type != x.ab_type) {
    x.bias = nullptr;
    x.c = x.d;
    x.ldc = x.ldd;
    x.stride_c = x.stride_d;
    x.beta = 1.0f;
  }
  return x;
}

// Events for one timed launch after another.
class Timer {
 public:
  Timer() {
    SAT_CUDA(cudaEventCreate(&begin_));
    SAT_CUDA(cudaEventCreate(&end_));
  }
  ~Timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  Timer(const Timer&) = delete;
  float ms(cudaStream_t stream, const auto& body) {
    SAT_CUDA(cudaEventRecord(begin_, stream));
    body();
    SAT_CUDA(cudaEventRecord(end_, stream));
    SAT_CUDA(cudaEventSynchronize(end_));
    float elapsed = 0.0f;
    SAT_CUDA(cudaEventElapsedTime(&elapsed, begin_, end_));
    return elapsed;
  }

 private:
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

}  // namespace

void matmul_cublaslt_load(Device device) { library().handle(device.index); }

Fit matmul_cublaslt_cuda_fits(const Context&, const MatmulArgs& x) noexcept {
  if (x.ab_type == DType::f64) return {"f64 runs on the CPU only"};
  if (!x.epilogue.is_plain()) return {"cuBLASLt is asked for no epilogue beyond the bias"};
  if (x.batch > INT32_MAX) return {"more than 2^31 products"};
  return {};
}

namespace {

// What `config` names for x, which has no bias of another type than d. Errors: unsupported.
std::optional<Algorithm> find_algorithm(const Context& ctx, const MatmulArgs& x,
                                        const std::string& config) {
  const Key key{matmul_problem_key(ctx, x), config};
  Library& lib = library();
  {
    const std::lock_guard lock(lib.mutex);
    if (const auto known = lib.known.find(key); known != lib.known.end()) return known->second;
  }
  std::optional<Algorithm> found;
  if (config.empty()) {
    found = Problem(ctx, x).candidates(1).front();
  } else if (const std::optional<cublasLtMatmulAlgo_t> named = parse_algorithm(config)) {
    found = Problem(ctx, x).accepted(*named);
  }
  const std::lock_guard lock(lib.mutex);
  return lib.known.try_emplace(key, found).first->second;
}

}  // namespace

PreparedMatmul matmul_cublaslt_prepare(const Context& ctx, const MatmulArgs& args,
                                       const std::string& config) {
  if (args.k == 0) {
    return {[](const Context& c, const MatmulArgs& x) {
              each_product(x, [&](const MatmulArgs& one) { matmul_start_cuda(c, one); });
            },
            0};
  }
  const std::optional<Algorithm> chosen = find_algorithm(ctx, without_mixed_bias(args), config);
  if (!chosen) throw Error(Errc::unsupported, "matmul", kRefused);
  return {[algo = chosen->algo](const Context& c, const MatmulArgs& a) {
            const MatmulArgs x = without_mixed_bias(a);
            if (a.bias != nullptr && x.bias == nullptr)
              each_product(a, [&](const MatmulArgs& one) { matmul_start_cuda(c, one); });
            Problem(c, x).run(algo);
          },
          chosen->workspace_bytes};
}

void matmul_cublaslt_configured(const Context& ctx, const MatmulArgs& args,
                                const std::string& config) {
  matmul_cublaslt_prepare(ctx, args, config).launch(ctx, args);
}

void matmul_cublaslt_cuda(const Context& ctx, const MatmulArgs& args) {
  matmul_cublaslt_configured(ctx, args, "");
}

std::vector<std::string> matmul_cublaslt_configurations(const Context& ctx, const MatmulArgs& args,
                                                        int wanted) {
  const MatmulArgs x = without_mixed_bias(args);
  std::vector<std::string> configs;
  if (x.k == 0) return configs;
  for (const Algorithm& a : Problem(ctx, x).candidates(std::min(wanted, kMostCandidates))) {
    configs.push_back(text_of(a.algo));
  }
  return configs;
}

Fit matmul_cublaslt_ready(const Context& ctx, const MatmulArgs& args, const std::string& config) {
  if (config.empty()) return {};
  if (args.k == 0 || !find_algorithm(ctx, without_mixed_bias(args), config)) return {kRefused};
  return {};
}

std::string matmul_cublaslt_fastest(const Context& ctx, const MatmulArgs& args) {
  const cudaStream_t stream = cuda::stream_of(ctx);
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  SAT_CUDA(cudaStreamIsCapturing(stream, &capture));
  if (capture != cudaStreamCaptureStatusNone) {
    throw Error(Errc::invalid_argument, "matmul_cublaslt_fastest",
                "the stream is being captured; measure before the capture begins");
  }
  const MatmulArgs x = without_mixed_bias(args);
  Problem problem(ctx, x);
  const std::vector<Algorithm> algos = problem.candidates(kCandidates);
  // Rounds over all candidates, so that a clock that falls as the chip warms up meets all of them
  // alike. A change must pay: below 2% the first stays, which keeps the choice the same from run to
  // run.
  constexpr size_t kRounds = 9;
  constexpr float kWorthIt = 0.98f;
  std::vector<std::array<float, kRounds>> ms(algos.size());
  Timer timer;
  for (const Algorithm& a : algos) problem.run(a.algo);  // loads the kernels
  for (size_t round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < algos.size(); ++i) {
      ms[i][round] = timer.ms(stream, [&] { problem.run(algos[i].algo); });
    }
  }
  size_t best = 0;
  for (size_t i = 0; i < algos.size(); ++i) {
    std::nth_element(ms[i].begin(), ms[i].begin() + kRounds / 2, ms[i].end());
    const float limit = ms[best][kRounds / 2] * (best == 0 ? kWorthIt : 1.0f);
    if (ms[i][kRounds / 2] < limit) best = i;
  }
  return best == 0 ? "" : text_of(algos[best].algo);
}

}  // namespace saturate::kernels
