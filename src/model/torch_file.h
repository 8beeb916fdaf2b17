// SPDX-License-Identifier: Apache-2.0
// Files of torch.save() (pytorch_model.bin), read without running anything: a pickle is a program, and
// this knows the few instructions and names that a dictionary of tensors needs and refuses the rest.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "model/safetensors.h"

namespace saturate::model {

// The tensors of a whole file image, with the names of safetensors' types; the views borrow from it.
// Both formats: the zip archive, and the one before PyTorch 1.6. Memory is bounded by the bytes of the
// pickle. Errors: invalid_argument naming `where` and what is refused: another instruction, name or
// value than a flat dictionary of contiguous tensors has, or data that the file does not hold.
// Source: Python's pickletools (protocol 2); torch/serialization.py and torch/_utils.py.
std::vector<TensorView> parse_torch_file(std::span<const std::byte> file, const std::string& where);

}  // namespace saturate::model
