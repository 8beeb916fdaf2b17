// SPDX-License-Identifier: Apache-2.0
// Times of shapes that were not measured, from those nearest to them that were.
#pragma once
#include <optional>
#include <string>

#include "plan/machine.h"

namespace saturate::plan {

// Of the operation of that key (operation_key): what rates say of it, times what the two nearest
// measured operations of the same name, type and number of values take of what rates say of them. The
// distance of two shapes is the sum of their extents' logarithms' differences. None: there is no such
// operation.
std::optional<double> nearest_us(const Machine& machine, const std::string& key);

}  // namespace saturate::plan
