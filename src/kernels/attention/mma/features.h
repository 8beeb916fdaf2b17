// SPDX-License-Identifier: Apache-2.0
// The tensor-core kernels with every feature, for the sizes of cmake/attention_instances.cmake.
#pragma once
#include "kernels/attention/features.h"
#include "kernels/attention/impl.h"

namespace saturate::kernels {

// Sets of features that a kernel is compiled with: what it does not offer costs it no registers.
namespace attention {

constexpr uint32_t kMayDrop = 1u << 31;  // beside the features: dropout
// Nothing that changes a score.
constexpr uint32_t kFewFeatures =
    kFeatureBottomRight | kFeatureWindow | kFeatureSinks | kFeatureValueSize;
constexpr uint32_t kDropFeatures = kFewFeatures | kMayDrop;
constexpr uint32_t kCapFeatures = kFewFeatures | kFeatureSoftCap;
constexpr uint32_t kAllFeatures =
    kCapFeatures | kFeatureBias | kFeatureAlibi | kFeatureRotary | kFeatureBlockMask | kMayDrop;

// Rows of a block and of the other side in a step of the backward pass. Heads of 256 leave room for
// one block a multiprocessor, which needs more rows, and so warps, where shared memory allows.
constexpr int kOwnRows = 64, kManyRows = 128;
constexpr int other_rows(int head, int value) { return head + value <= 128 ? 64 : 32; }

// Bytes of shared memory of a block, whose rows are padded to groups of 64 elements.
constexpr int padded_bytes(int size) { return (size + 63) / 64 * 128; }
constexpr int forward_bytes(int head, int value) {
  const int wider = head > value ? head : value;
  return 64 * (padded_bytes(wider) + padded_bytes(head) + padded_bytes(value));
}
constexpr int backward_bytes(int head, int value, int own) {
  const int other = other_rows(head, value);
  return (own + 2 * other) * (padded_bytes(head) + padded_bytes(value)) + 16 * other;
}

}  // namespace attention

// Compute capability 8.0 and later, f16 or bf16, heads of multiples of 8 up to 256 elements.
Fit attention_features_fit(const Context& ctx, const AttentionArgs& args) noexcept;
Fit attention_backward_features_fit(const Context& ctx, const AttentionBackwardArgs& args) noexcept;
void attention_forward_features_cuda(const Context& ctx, const AttentionArgs& args);
void attention_backward_features_cuda(const Context& ctx, const AttentionBackwardArgs& args);

// Fits when a grid can count the tiles of d_bias, where it is wanted.
Fit attention_fits_bias_gradient(const AttentionBackwardArgs& args) noexcept;

}  // namespace saturate::kernels
