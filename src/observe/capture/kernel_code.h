// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_set>

namespace saturate::observe::cupti {

// Which kernels compute in float64 by their instructions, where their names do not say it: those of
// XLA, Triton, and of CUDA C++ that a program brings as text (CuPy, PyTorch's load_inline).
//
// A kernel does when more of its floating-point instructions are of float64 than of all narrower
// types together. They are counted as they stand, not as often as they run. Names with a narrower
// type in them ("<float", "half") are left out: libraries compute a few scalars of such kernels in
// float64, with more instructions than the rest has.
//
// For machine code of Volta (7.0) and later, whose instructions have 16 bytes. Older code is passed
// over.
// Source    found by disassembling code for sm_75 to sm_120 (nvdisasm 13): the low nine bits of an
// instruction are the operation.
class KernelCode {
 public:
  // A module (cubin) that was loaded, in memory. Of kernels with one name the module that came last
  // counts. What is no machine code for a GPU, or ends early, is passed over. Any thread.
  // Cost      one pass over the code: 3.3 ms for 10 MB (one core of an AMD EPYC, median of 15).
  void add(const void* cubin, size_t bytes);
  bool computes_in_float64(const std::string& mangled) const;

 private:
  mutable std::mutex mutex_;
  std::unordered_set<std::string> float64_;
};

// Whether a kernel's name holds a type of fewer bits than float64.
bool names_narrow_type(std::string_view name);

}  // namespace saturate::observe::cupti
