// SPDX-License-Identifier: Apache-2.0
// Run-time compilation of CUDA kernels through NVRTC, which is loaded when first needed: without it
// everything but tuning works.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace saturate::kernels {

struct NvrtcHeader {
  const char* name;  // as #include writes it
  const char* text;
};

struct NvrtcKernel {
  std::string cubin;
  std::string symbol;  // of `expression` within the cubin
};

// Whether NVRTC can be loaded; the reason says what to install.
Fit nvrtc_fits() noexcept;
// "13.0". Errors: unsupported.
std::string nvrtc_version();

// Compiles `source` for "sm_90a" or the like and finds the kernel that `expression`
// ("sgemm_tiled<128, 128, 8>") names. Thread-safe; needs no GPU.
// Errors    unsupported (no NVRTC, with the remedy); invalid_argument with the compiler's first
// error.
NvrtcKernel nvrtc_compile(const std::string& source, std::span<const NvrtcHeader> headers,
                          const std::string& arch, const std::string& expression);

// The same, kept in `folder` under a hash of everything the result depends on; an empty folder
// keeps nothing. A file that is torn or altered is compiled anew.
NvrtcKernel nvrtc_compile_cached(const std::string& folder, const std::string& source,
                                 std::span<const NvrtcHeader> headers, const std::string& arch,
                                 const std::string& expression);

}  // namespace saturate::kernels
