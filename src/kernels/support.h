// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <string>

namespace saturate::kernels {

// What runs where, as Markdown: operation by device and type, and the implementation of attention by
// feature and head size. Made from the lists of implementations by their own fits functions, for
// GPUs of compute capability 8.0 and 9.0 whether one is here or not; a build without CUDA knows the
// CPU's only.
//
// Cost      a few thousand calls of fits functions; no device is asked.
std::string support_tables();

}  // namespace saturate::kernels
