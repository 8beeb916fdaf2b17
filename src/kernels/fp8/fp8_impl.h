// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/fp8/fp8.h"

namespace saturate::kernels {

void fp8_quantize_cpu(const Context& ctx, const Fp8QuantizeArgs& args);
void fp8_quantize_cuda(const Context& ctx, const Fp8QuantizeArgs& args);
void fp8_quantize_weights_cpu(const Context& ctx, const Fp8WeightsArgs& args);
void fp8_quantize_weights_cuda(const Context& ctx, const Fp8WeightsArgs& args);
void fp8_roll_cpu(const Context& ctx, const Fp8RollArgs& args);
void fp8_roll_cuda(const Context& ctx, const Fp8RollArgs& args);
void fp8_matmul_cpu(const Context& ctx, const Fp8MatmulArgs& args);
void fp8_matmul_cuda(const Context& ctx, const Fp8MatmulArgs& args);
// The same by another place of cuBLASLt's list of algorithms, which fp8_matmul_cuda() takes the first of; for
// measuring. Errors: unsupported where the list is shorter.
void fp8_matmul_candidate_cuda(const Context& ctx, const Fp8MatmulArgs& args, int candidate);

}  // namespace saturate::kernels
