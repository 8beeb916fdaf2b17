// SPDX-License-Identifier: Apache-2.0
// What keep_columns.cpp shares with the implementations.
#pragma once
#include "kernels/adapters/keep_columns.h"

namespace saturate::kernels {

void keep_columns_cpu(const Context& ctx, const KeepColumnsArgs& args);
void keep_columns_cuda(const Context& ctx, const KeepColumnsArgs& args);

}  // namespace saturate::kernels
