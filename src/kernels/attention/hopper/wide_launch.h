// SPDX-License-Identifier: Apache-2.0
// The instances of the Hopper kernels for wide heads: head size 256, and 192 with values of 128.
#pragma once
#include "kernels/attention/hopper/wide_problem.h"

namespace saturate::kernels::attention::wide {

// Rows of a forward tile (wide_forward.cuh), for the size of q's heads: of queries, of keys.
constexpr int kForwardQueries = 128;
constexpr int forward_keys(int64_t head_size) { return head_size == 256 ? 80 : 128; }

// On `blocks` blocks. Returns the launch's error.
cudaError_t forward_d192_bf16(const ForwardProblem& p, int blocks, cudaStream_t stream);
cudaError_t forward_d192_f16(const ForwardProblem& p, int blocks, cudaStream_t stream);
cudaError_t forward_d256_bf16(const ForwardProblem& p, int blocks, cudaStream_t stream);
cudaError_t forward_d256_f16(const ForwardProblem& p, int blocks, cudaStream_t stream);
// Gradients of the queries (wide_queries.cuh).
cudaError_t queries_d192_bf16(const BackwardProblem& p, int blocks, cudaStream_t stream);
cudaError_t queries_d192_f16(const BackwardProblem& p, int blocks, cudaStream_t stream);
cudaError_t queries_d256_bf16(const BackwardProblem& p, int blocks, cudaStream_t stream);
cudaError_t queries_d256_f16(const BackwardProblem& p, int blocks, cudaStream_t stream);
// Gradients of keys and values (wide_keys.cuh).
cudaError_t keys_d192_bf16(const BackwardProblem& p, int blocks, cudaStream_t stream);
cudaError_t keys_d192_f16(const BackwardProblem& p, int blocks, cudaStream_t stream);
cudaError_t keys_d256_bf16(const BackwardProblem& p, int blocks, cudaStream_t stream);
cudaError_t keys_d256_f16(const BackwardProblem& p, int blocks, cudaStream_t stream);

// With windows, bottom-right alignment or sinks, and with a soft cap (windowed.h).
cudaError_t forward_windowed_d256(DType type, const ForwardProblem& p, int blocks,
                                  cudaStream_t stream);
cudaError_t forward_score_mod_d256(DType type, const ForwardProblem& p, int blocks,
                                   cudaStream_t stream);
cudaError_t queries_windowed_d256(DType type, const BackwardProblem& p, int blocks,
                                  cudaStream_t stream);
cudaError_t queries_score_mod_d256(DType type, const BackwardProblem& p, int blocks,
                                   cudaStream_t stream);
cudaError_t keys_windowed_d256(DType type, const BackwardProblem& p, int blocks,
                               cudaStream_t stream);
cudaError_t keys_score_mod_d256(DType type, const BackwardProblem& p, int blocks,
                                cudaStream_t stream);

}  // namespace saturate::kernels::attention::wide
