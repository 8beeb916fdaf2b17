// SPDX-License-Identifier: Apache-2.0
// NumPy's .npz: a zip archive of arrays.
#pragma once
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "model/safetensors.h"

namespace saturate::model {

// The arrays of a whole file image, with the names of safetensors' types and without ".npy"; the views
// borrow from it, those of deflated arrays from `unpacked`. Memory is bounded as in zip_entries().
// Errors: invalid_argument naming `where` and the array: no archive of arrays, elements that are no
// little-endian numbers, columns first, a size that is not the shape's.
// Source: numpy.lib.format, versions 1 to 3.
std::vector<TensorView> parse_npz(std::span<const std::byte> file, const std::string& where,
                                  std::deque<std::vector<std::byte>>& unpacked);

}  // namespace saturate::model
