// SPDX-License-Identifier: Apache-2.0
#include "ops/store_rows.h"

#include "kernels/experts/expert_rows.h"

namespace saturate::ops {

void store_rows(Tape& tape, Value x, int64_t width, const int32_t* places, void* memory) {
  const Tape::Info in = tape.info(x);
  SAT_ASSERT(!tape.training() && in.cols % width == 0);
  tape.record("store_rows", {x}, {}, [=](const Run& r) {
    kernels::dispatch_rows(r.ctx, {.x = r(x),
                                   .slots = places,
                                   .y = memory,
                                   .rows = in.rows * (in.cols / width),
                                   .cols = width,
                                   .dtype = in.dtype});
  });
}

}  // namespace saturate::ops
