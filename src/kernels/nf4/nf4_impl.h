// SPDX-License-Identifier: Apache-2.0
// What the implementations share: scales and their codes.
#pragma once
#include "kernels/nf4/nf4.h"
#include "kernels/optimizer/moments.h"

namespace saturate::kernels {

// The parts of Nf4Layout.
struct Nf4Parts {
  const float* group_scales;
  const float* mean;
  const uint8_t* scales;
  const uint8_t* codes;
};
inline Nf4Parts parts_of(const Nf4Args& a) {
  const Nf4Layout layout(a.count);
  const auto* bytes = static_cast<const uint8_t*>(a.held);
  const auto* floats = static_cast<const float*>(a.held);
  return {floats, floats + layout.groups(), bytes + layout.scales_at(), bytes + layout.codes_at()};
}

// Of codes of scales: the signed dynamic map, by which moments are held too.
struct Nf4ScaleTable {
  float values[SignedMap::kValues];
};
const Nf4ScaleTable& nf4_scale_table();

void nf4_dequantize_cpu(const Context& ctx, const Nf4Args& args);
void nf4_dequantize_cuda(const Context& ctx, const Nf4Args& args);

}  // namespace saturate::kernels
