// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/decode/beam_step_impl.h"

namespace saturate::kernels {

void beam_place_cpu(const Context&, const BeamPlaceArgs& a) {
  const int64_t count = std::min<int64_t>(*a.count, a.most);
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t k = 0; k < a.beam; ++k) {
      a.dtype == DType::f64 ? place_row<double>(a, a.placements[i], k)
                            : place_row<float>(a, a.placements[i], k);
    }
  }
}

}  // namespace saturate::kernels
