// SPDX-License-Identifier: Apache-2.0
#include "kernels/options.h"

#include <cstdlib>
#include <string_view>

#include "base/error.h"

namespace saturate::kernels {
namespace {

CpuLevel level_of(std::string_view name) {
  constexpr std::string_view kNames[] = {"plain", "avx2", "avx512", "vnni", "bf16", "amx"};
  for (size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<CpuLevel>(i);
  }
  throw Error(Errc::invalid_argument, "SATURATE_CPU",
              "it is " + std::string(name) + "; it must be plain, avx2, avx512, vnni, bf16 or amx");
}

}  // namespace

KernelOptions kernel_options_from_environment() {
  KernelOptions options;
  if (const char* const matmul = std::getenv("SATURATE_MATMUL")) options.matmul = matmul;
  if (const char* const level = std::getenv("SATURATE_CPU")) options.cpu = level_of(level);
  return options;
}

}  // namespace saturate::kernels
