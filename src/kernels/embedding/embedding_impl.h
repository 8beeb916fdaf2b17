// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "kernels/embedding/embedding.h"

namespace saturate::kernels {

void embedding_forward_cpu(const Context& ctx, const EmbeddingArgs& args);
void embedding_forward_cuda(const Context& ctx, const EmbeddingArgs& args);
void embedding_backward_cpu(const Context& ctx, const EmbeddingBackwardArgs& args);
void embedding_backward_cuda(const Context& ctx, const EmbeddingBackwardArgs& args);

}  // namespace saturate::kernels
