// SPDX-License-Identifier: Apache-2.0
// The instances of the Hopper kernels for wide heads: head size 256, and 192 with values of 128.
#pragma once
#include "kernels/attention/wide/problem.h"

namespace saturate::kernels::attention::wide {

// Rows of a forward tile (forward.cuh), for the size of q's heads: of queries, of keys.
constexpr int kForwardQueries = 128;
constexpr int forward_keys(int64_t head_size) { return head_size == 256 ? 80 : 128; }

// The instances of cmake/attention_instances.cmake, on `blocks` blocks: T bf16 or f16; kD 256, or
// 192 with values of 128, which has no features. kWindowed: windows, bottom-right alignment or
// sinks; kScoreMod: a soft cap too (hopper/windowed.h). Return the launch's error.
constexpr int value_size(int head_size) { return head_size == 192 ? 128 : head_size; }
template <class T, int kD, bool kWindowed, bool kScoreMod>
cudaError_t launch_forward(const ForwardProblem& p, int blocks, cudaStream_t stream);
// Gradients of the queries (queries.cuh).
template <class T, int kD, bool kWindowed, bool kScoreMod>
cudaError_t launch_queries(const BackwardProblem& p, int blocks, cudaStream_t stream);
// Gradients of keys and values (keys.cuh).
template <class T, int kD, bool kWindowed, bool kScoreMod>
cudaError_t launch_keys(const BackwardProblem& p, int blocks, cudaStream_t stream);

}  // namespace saturate::kernels::attention::wide
