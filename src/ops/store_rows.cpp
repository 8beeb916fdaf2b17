// SPDX-License-Identifier: Apache-2.0
#include "ops/store_rows.h"

#include "kernels/experts/expert_rows.h"

namespace saturate::ops {

void store_rows(Tape& tape, Value x, const int32_t* places, void* memory) {
  SAT_ASSERT(!tape.training());
  const Tape::Info in = tape.info(x);
  tape.record("store_rows", {x}, {}, [=](const Run& r) {
    kernels::dispatch_rows(r.ctx, {.x = r(x),
                                   .slots = places,
                                   .y = memory,
                                   .rows = in.rows,
                                   .cols = in.cols,
                                   .dtype = in.dtype});
  });
}

}  // namespace saturate::ops
