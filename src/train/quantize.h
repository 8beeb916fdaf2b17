// SPDX-License-Identifier: Apache-2.0
// Model folders whose matrices are stored in eight bits.
#pragma once
#include <cstdint>
#include <string>

namespace saturate::train {

struct QuantizedFolder {
  uint64_t bytes_before = 0, bytes_after = 0;  // of the weights' files
  int64_t matrices = 0;                        // that were rounded
  // Of bytes_after; what is missing are the names: a byte a weight, the scales in fp32, and what stayed
  // as it was (norms, biases, positions).
  uint64_t matrix_bytes = 0, scale_bytes = 0, kept_bytes = 0;
};

// Writes the folder `to`, which must not be there yet: all of the model folder `from`, but each matrix
// that a linear layer or a vocabulary reads as I8 with a scale for each output, NAME_scale: the largest
// |w| / 127. Other tensors stay as they are. config.json says "quantization_config", so that other
// programs refuse it. The folder appears as a whole. Errors: io; invalid_argument where `to` exists or
// `from` is quantized; those of reading a folder.
QuantizedFolder quantize_folder(const std::string& from, const std::string& to);

// Whether quantize_folder() made this model folder. Errors: io, invalid_argument.
bool is_quantized(const std::string& folder);

}  // namespace saturate::train
