// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/names.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <initializer_list>
#include <string>

#include "observe/trace/trace.h"

namespace saturate::observe {
namespace {

bool has_any(std::string_view text, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) {
    return text.find(part) != std::string_view::npos;
  });
}

std::string lower(std::string_view text) {
  std::string out(text.substr(0, 512));  // template arguments can run to kilobytes
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

// Names that only tensor-core code carries: instruction shapes and mnemonics of cuBLAS, cuDNN and
// CUTLASS kernels (16x8x16 multiply-accumulate is "16816"), and Hopper's nvjet and GMMA families.
bool names_tensor_cores(std::string_view n) {
  return has_any(n, {"h884",   "s884",  "h1688",     "s1688",    "i8816",  "16816",     "hmma",
                     "imma",   "wgmma", "gmma",      "tensorop", "nvjet",  "tf32",      "bf16bf16",
                     "f16f16", "_tc_",  "tensor_op", "_mma_",    "i16832", "triton_tem"});
}

}  // namespace

CallClass classify_call(std::string_view name) {
  if (name == kDeviceWait) return CallClass::sync;
  const std::string n = lower(name);
  if (has_any(n, {"synchronize", "streamwaitvalue", "eventquery"}))
    return has_any(n, {"eventquery"}) ? CallClass::other : CallClass::sync;
  if (has_any(n,
              {"moduleload", "libraryload", "linkadd", "linkcomplete", "linkcreate", "instantiate",
               "devicereset", "ctxcreate", "primaryctxretain", "modulegetfunction",
               "modulegetloadingmode", "initdevice", "graphexecupdate", "setdevice_init"}) ||
      n == "cuinit")
    return CallClass::load;
  if (has_any(n, {"malloc", "memalloc", "memfree", "hostalloc", "hostregister", "hostunregister",
                  "freehost", "memcreate", "memmap", "memunmap", "memrelease", "mempool"}) ||
      n.starts_with("cudafree"))
    return CallClass::allocate;
  if (has_any(n, {"memcpy", "prefetch"})) return CallClass::copy;
  if (has_any(n, {"launch", "memset"})) return CallClass::launch;
  return CallClass::other;
}

bool is_blocking_copy(std::string_view name) {
  const std::string n = lower(name);
  return has_any(n, {"memcpy"}) && !has_any(n, {"async", "batch"});
}

bool is_pointwise(std::string_view kernel) {
  const std::string n = lower(kernel);
  if (n.starts_with("cupy_"))  // one kernel an operation of arrays
    return !has_any(n, {"sum", "prod", "_max_", "_min_", "arg", "mean", "_all", "_any", "scan"});
  return has_any(n, {"elementwise", "pointwise", "triton_poi", "loop_", "wrapped_"});
}

bool is_layout_change(std::string_view kernel) {
  return has_any(lower(kernel), {"nchwtonhwc", "nhwctonchw", "nchw2nhwc", "nhwc2nchw",
                                 "transpose_readwrite", "converttensor"});
}

bool is_attention(std::string_view kernel) {
  return has_any(lower(kernel), {"flash_fwd", "flash_bwd", "flash::", "flashattn", "fmha",
                                 "cudnn_generated_fort_native_sdpa"});
}

bool can_read_mask(std::string_view kernel) {
  return has_any(lower(kernel), {"fmha", "cudnn_generated_fort_native_sdpa"});
}

bool is_optimizer(std::string_view kernel) {
  return has_any(lower(kernel.substr(0, 512)),
                 {"multi_tensor", "adam", "sgd", "lamb_", "lambfunctor", "lambstage", "optimizer",
                  "adagrad"});  // "lamb" is in every "{lambda(float)#1}"
}

bool is_tf32(std::string_view kernel) {
  const std::string n = lower(kernel);
  return has_any(n, {"tf32"}) || (has_any(n, {"tensorop_s1688"}) && !has_any(n, {"f16"}));
}

bool is_float32_attention(std::string_view kernel) {
  const std::string n = lower(kernel);
  return has_any(n, {"fmha"}) && has_any(n, {"_f32_"});
}

bool is_16_bit_product(std::string_view kernel) {
  const std::string n = lower(kernel);
  if (is_attention(n)) return !is_float32_attention(n);
  if (has_any(n, {"bf16", "f16f16", "_f16_", "16816", "h884", "h1688", "bfloat16", "<__half"}))
    return true;
  // "nvjet_sm90_tst_...", "nvjet_hsh_...": the type of the first matrix, h half and t bfloat16
  size_t at = n.find("nvjet_");
  if (at == std::string::npos) return false;
  at += 6;
  if (n.compare(at, 2, "sm") == 0) at = n.find('_', at) + 1;
  return at > 0 && at < n.size() && (n[at] == 'h' || n[at] == 't');
}

bool is_integer_product(std::string_view kernel) {
  return has_any(lower(kernel), {"tensordot_core_int"});  // CuPy's
}

bool is_partial_update(std::string_view kernel) {
  return has_any(lower(kernel), {"dynamic_update_slice", "dynamic-update-slice", "scatter_fusion"});
}

bool is_rounding(std::string_view kernel) {
  return has_any(kernel.substr(0, 512), {"float16_copy_kernel"});  // float16 and bfloat16
}

bool is_copy(std::string_view kernel) {
  const std::string_view n = kernel.substr(0, 512);
  if (has_any(n, {"direct_copy_kernel"})) return has_any(n, {"nocast"});  // PyTorch's
  if (const size_t at = n.find("cupy_copy__"); at != std::string_view::npos) {
    const std::string_view types = n.substr(at + 11);  // "float32_float32"
    const size_t half = types.size() / 2;
    return types.size() % 2 == 1 && types[half] == '_' &&
           types.substr(0, half) == types.substr(half + 1);
  }
  return has_any(n, {"CatArrayBatchedCopy", "cupy_concatenate", "wrapped_copy", "wrapped_transpose",
                     "wrapped_concatenate", "wrapped_broadcast"});
}

bool is_concatenation(std::string_view kernel) {
  return has_any(kernel.substr(0, 512),
                 {"CatArrayBatchedCopy", "cupy_concatenate", "wrapped_concatenate"});
}

bool is_gather(std::string_view kernel) {
  return has_any(kernel.substr(0, 512),
                 {"vectorized_gather_kernel", "indexSelect", "index_select"});
}

const SlowKernel* slow_kernel(std::string_view kernel) {
  static constexpr SlowKernel kSlow[] = {
      {"indexing_backward_kernel",
       "rows are added to those that indices pick, those of one index one after the other",
       "torch.nn.functional.embedding(indices, table) or table.index_select(0, indices) in place "
       "of table[indices], whose gradient this is; a product with a one-hot matrix where the table "
       "has a few rows",
       "index_select adds in an order that changes from run to run"},
      {"cdist_kernel", "distances are formed pair by pair, without products",
       "torch.cdist(..., compute_mode=\"use_mm_for_euclid_dist\"), or a.square().sum(-1, True) + "
       "b.square().sum(-1)[None] - 2 a @ b.T",
       "fewer digits where points lie close together"},
      {"ArgMinOps",
       "the place of the least of each row is looked for, which is slow for short rows",
       "torch.bucketize or searchsorted where the values can be sorted",
       "nothing to win where rows are long; a value halfway between two may go to the other one"},
  };
  for (const SlowKernel& s : kSlow)
    if (has_any(kernel.substr(0, 512), {s.part})) return &s;
  return nullptr;
}
bool is_fill(std::string_view kernel) {
  return has_any(kernel.substr(0, 512), {"FillFunctor"});  // PyTorch's
}

bool is_recurrent(std::string_view kernel) {
  return has_any(kernel.substr(0, 512), {"RNNcell", "cudnnRNN", "RNN_block", "LSTM_elementWise",
                                         "GRU_elementWise", "persistRNN"});
}

bool is_slow(std::string_view kernel) { return slow_kernel(kernel) != nullptr; }

bool is_sort(std::string_view kernel) {
  return has_any(
      lower(kernel.substr(0, 512)),
      {"radix_sort", "radixsort", "merge_sort", "mergesort", "bitonicsort", "segmentedsort",
       "segmented_sort", "devicesegmentedsort", "coalescevalues", "unique_by_key"});
}

bool is_detour_transform(std::string_view kernel) { return has_any(lower(kernel), {"bluestein"}); }

bool is_softmax(std::string_view kernel) {
  const std::string n = lower(kernel);
  return has_any(n, {"softmax"}) && !has_any(n, {"logsoftmax", "log_softmax"});
}

bool is_beside_attention(std::string_view kernel) {
  return has_any(lower(kernel), {"norm", "embedding", "index", "gather", "nll_loss",
                                 "cross_entropy", "logsoftmax", "log_softmax"});
}

bool is_double(std::string_view kernel) {
  if (is_double_by_code(kernel)) return true;
  const std::string_view n = kernel.substr(0, 512);
  // Scalars of a call are double as well: only a first type counts, behind a number or not; and the
  // first that an operation on each element takes.
  if (has_any(n, {"f64f64", "d884", "dgemm", "_f64_", "float64", "complex128", "<double",
                  "{lambda(double"}))
    return true;
  if (has_any(n, {"fft"}) && has_any(n, {", double"}))
    return true;  // cuFFT's: a type among numbers
  for (size_t at = n.find('<'); at != std::string_view::npos; at = n.find('<', at + 1)) {
    const size_t after = n.find_first_not_of("0123456789", at + 1);
    if (after != std::string_view::npos && after > at + 1 &&
        n.substr(after).starts_with(", double"))
      return true;
  }
  return false;
}

bool is_double_by_code(std::string_view kernel) { return kernel.ends_with(kFloat64Code); }

bool is_array_operation(std::string_view kernel) {
  return kernel.starts_with("cupy_") && is_pointwise(kernel);
}

bool is_compiled(std::string_view kernel) {
  return has_any(kernel.substr(0, 512), {"fusion", "triton"});
}

bool compares_results(std::string_view kernel) {
  return has_any(kernel.substr(0, 512), {"xla_fp_comparison"});
}

bool says_type_of_products(std::string_view kernel) {
  if (compares_results(kernel)) return true;
  const KernelClass kind = classify_kernel(kernel);
  return (kind == KernelClass::tensor || kind == KernelClass::matrix) && !is_compiled(kernel);
}

bool shows_elements(std::string_view kernel) {
  return has_any(kernel.substr(0, 512), {"elementwise_kernel"});
}

bool is_backward(std::string_view kernel) {
  return has_any(lower(kernel), {"backward", "_bwd", "bprop", "grad_input", "gradinput", "dgrad",
                                 "wgrad", "batchnorm_bw"});
}

bool pins_memory(std::string_view call) {
  return has_any(lower(call), {"hostalloc", "mallochost", "memallochost", "hostregister",
                               "hostunregister", "freehost"});
}

KernelClass classify_kernel(std::string_view name) {
  const std::string n = lower(name);
  if (has_any(n, {"nccl", "nvshmem", "allreduce", "all_reduce", "allgather", "all_gather",
                  "reducescatter", "reduce_scatter", "alltoall", "all_to_all"}))
    return KernelClass::communication;
  if (is_attention(n)) return KernelClass::tensor;
  // Before the products: what reads a history or a matrix for a few rows does little else, so that no
  // unit for products makes it faster; and their helpers move data only.
  if (has_any(n, {"paged_attention", "cached_attention", "decode_attention", "batchdecode",
                  "singledecode", "masked_multihead_attention", "mmha", "gemv"}))
    return KernelClass::memory;
  if (has_any(n, {"splitkreduce", "splitk_reduce", "_join_kernel", "nchwtonhwc", "nhwctonchw",
                  "transpose_readwrite"}))
    return KernelClass::memory;
  if (names_tensor_cores(n)) return KernelClass::tensor;
  if (has_any(n, {"gemm", "gemv", "matmul", "conv2d", "convolve", "winograd", "implicit_con",
                  "cutlass", "wgrad", "dgrad", "fprop", "attention",
                  // cuDNN's convolutions by Fourier transforms
                  "fft2d_r2c", "fft2d_c2r", "dse::", "mult_and_sum_complex"}))
    return KernelClass::matrix;
  if (has_any(n, {"elementwise", "reduce",       "softmax",    "norm",     "multi_tensor",
                  "adam",        "sgd",          "fill",       "copy",     "memset",
                  "memcpy",      "index",        "gather",     "scatter",  "embedding",
                  "dropout",     "cat",          "activation", "gelu",     "relu",
                  "silu",        "pool",         "transpose",  "permute",  "rotary",
                  "sort",        "scan",         "cumsum",     "nll_loss", "cross_entropy",
                  "triton_poi",  "triton_per",   "triton_red", "loop_",    "input_",
                  "wrapped_",    "distribution", "cast",       "cupy_"}))
    return KernelClass::memory;
  return KernelClass::other;
}

}  // namespace saturate::observe
