// SPDX-License-Identifier: Apache-2.0
// What a CUDA call or a kernel is for, from its name alone.
#pragma once
#include <cstdint>
#include <string_view>

namespace saturate::observe {

enum class CallClass : uint8_t {
  other,
  launch,    // hands work to the device and returns
  copy,      // starts a copy; waits for it or not
  sync,      // returns when the device is done
  allocate,  // takes or gives back device or pinned memory
  load,      // loads or compiles code, creates contexts, instantiates graphs
};
// `name` as the profilers write it: "cudaLaunchKernel", "cudaLaunchKernel_v7000",
// "cuLaunchKernelEx".
CallClass classify_call(std::string_view name);
// Whether the call always waits for its copy (cudaMemcpy, cuMemcpyDtoH_v2, but no ...Async).
bool is_blocking_copy(std::string_view name);

enum class KernelClass : uint8_t {
  tensor,         // matrix product, convolution or attention on tensor cores
  matrix,         // the same without tensor cores
  memory,         // elementwise, reduction, normalisation, optimizer: bound by memory traffic
  communication,  // NCCL and the like
  other,
};
// `name` mangled or not. Newer libraries bring new names: what is not known is `other`.
KernelClass classify_kernel(std::string_view name);

// Of memory-bound kernels: whether each element is worked on by itself, so that neighbours can be
// one kernel; and whether it only changes the order of memory for what comes next.
bool is_pointwise(std::string_view kernel);
bool is_layout_change(std::string_view kernel);
// Whether a kernel is all of an attention, forward or backward.
bool is_attention(std::string_view kernel);
// Of those, whether it can read a mask of numbers; flash attention has none.
bool can_read_mask(std::string_view kernel);
// Whether a kernel updates weights, as far as its name says.
bool is_optimizer(std::string_view kernel);
// Of products on tensor cores: whether their inputs are fp32, rounded to TF32.
bool is_tf32(std::string_view kernel);
// Whether a kernel is an attention whose inputs are fp32; a product of 16 bits; a product of whole
// numbers that no library has a kernel for; and an update of a part of a buffer (XLA's).
bool is_float32_attention(std::string_view kernel);
bool is_16_bit_product(std::string_view kernel);
bool is_integer_product(std::string_view kernel);
bool is_partial_update(std::string_view kernel);
// Whether a kernel rounds numbers of fp32 to 16 bits and does nothing else.
bool is_rounding(std::string_view kernel);
// Whether a kernel writes elsewhere what it reads and does nothing else: other strides, several as
// one, one several times. Not a look-up by indices, nor one that changes the type.
bool is_copy(std::string_view kernel);
bool is_concatenation(std::string_view kernel);  // one that puts several into one
// Whether a kernel picks rows by their indices: a look-up, or a copy in another order.
bool is_gather(std::string_view kernel);
// Whether a kernel fills a tensor with one value.
bool is_fill(std::string_view kernel);
// Whether a kernel is of a recurrent layer of cuDNN's.
bool is_recurrent(std::string_view kernel);
// A kernel of a library that computes what others of the same library compute many times as fast:
// part of its name, what it does, what to call instead, and what is lost by that.
struct SlowKernel {
  std::string_view part, what, instead, caveat;
};
const SlowKernel* slow_kernel(std::string_view kernel);  // null: none that is known
bool is_slow(std::string_view kernel);
// Whether a kernel is of a sort, or merges what a sort has brought together.
bool is_sort(std::string_view kernel);
// Whether a kernel is of a Fourier transform whose length has a large prime factor: such lengths take
// a detour by longer transforms (Bluestein's).
bool is_detour_transform(std::string_view kernel);
// Whether a kernel is a softmax, forward or backward, but not that of a loss (log-softmax).
bool is_softmax(std::string_view kernel);
// Of memory-bound kernels: whether it does not belong between the products of an attention: a norm, a
// look-up, a loss.
bool is_beside_attention(std::string_view kernel);
// Whether a kernel computes in float64, as far as its name says: those of XLA and Triton do not, unless
// the capture has looked at their code, which is_double_by_code() tells (kFloat64Code).
bool is_double(std::string_view kernel);
bool is_double_by_code(std::string_view kernel);
// Whether a compiler made it of several operations: PyTorch's (Triton), XLA.
bool is_compiled(std::string_view kernel);
// Whether a kernel is XLA's comparison of what two ways to multiply give.
bool compares_results(std::string_view kernel);
// Whether a kernel's name says in which type products are: those of libraries, not what a compiler
// wrote; and XLA's comparison of what it tries.
bool says_type_of_products(std::string_view kernel);
// Whether a kernel is one operation on arrays of a library that keeps nothing for a backward pass
// (CuPy's): what it writes for the next one is as a rule nobody else's.
bool is_array_operation(std::string_view kernel);
// Whether a kernel works element by element with 4 to 16 elements a thread in blocks of one size, as
// PyTorch's do: blocks then say how many elements there are, within a factor of 4.
bool shows_elements(std::string_view kernel);
// Whether a kernel is of a backward pass, as far as its name says.
bool is_backward(std::string_view kernel);
// Of calls that allocate: whether they take, give back, pin or unpin host memory.
bool pins_memory(std::string_view call);

}  // namespace saturate::observe
