// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "kernels/gemm/tune/sgemm_jit.h"
#include "kernels/gemm/tune/sgemm_source.h"

namespace saturate::kernels {

NvrtcKernel compile_sgemm_tile(const std::string& folder, const std::string& arch, const TileSet& t,
                               bool aligned) {
  const std::string expression =
      fmt::format("saturate::kernels::sgemm_tiled<{}, {}, {}, {}, {}, {}, {}, {}, {}>", t.bm, t.bn,
                  t.bk, t.tm, t.tn, t.wm, t.wn, t.stages, aligned ? 4 : 1);
  return nvrtc_compile_cached(folder, kSgemmTiledSource, {}, arch, expression);
}

}  // namespace saturate::kernels
