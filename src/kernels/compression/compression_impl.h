// SPDX-License-Identifier: Apache-2.0
// What compression.cpp shares with the implementations.
#pragma once
#include "kernels/compression/compression.h"

namespace saturate::kernels {

constexpr float kLargestCode = 127;
// Below this a block is zeros, and its elements wait in the residual: 1 / scale would overflow.
constexpr float kSmallestScale = 0x1p-120f;
// Rounded up where a scale keeps 16 of 24 significant bits.
constexpr uint32_t kScaleTail = 0xff;

void compress_cpu(const Context& ctx, const CompressArgs& args);
void decompress_cpu(const Context& ctx, const DecompressArgs& args);

void compress_cuda(const Context& ctx, const CompressArgs& args);
void decompress_cuda(const Context& ctx, const DecompressArgs& args);

}  // namespace saturate::kernels
