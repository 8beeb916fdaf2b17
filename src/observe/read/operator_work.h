// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>
#include <string_view>

#include "observe/trace/record.h"

namespace saturate::observe {

// What an operator of PyTorch has at least to do, from what Kineto records of its inputs with
// record_shapes=True: operations (a multiplication and an addition count as two; one an element
// where values are mapped), and bytes if each input is read and each output written once. Known:
// products, convolutions, scaled dot-product attention and their backward passes, and common
// operators that move memory, but for those on lists of tensors, whose type is not recorded.
// `dims`, `types` and `values` are "Input Dims", "Input type" and "Concrete Inputs" as JSON; texts
// that do not fit each other, and operators that are not known, give nothing. Never throws on what
// they hold.
std::optional<OperatorWork> operator_work(std::string_view name, std::string_view dims,
                                          std::string_view types, std::string_view values);
// Whether the name is one of those; quick.
bool has_operator_work(std::string_view name);

}  // namespace saturate::observe
