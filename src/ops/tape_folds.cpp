// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "base/features.h"
#include "kernels/device/fold_columns.h"
#include "ops/tape.h"

namespace saturate {

void Tape::fold_at_the_end() {
  SAT_ASSERT(!planned_);
  std::map<int32_t, int> touched;  // by storage: operations that read or write it
  for (const Operation& o : operations_) {
    for (const auto* values : {&o.reads, &o.writes})
      for (Value v : *values)
        if (v) ++touched[storage_of(v)];
  }
  const auto list = std::make_shared<kernels::FoldList>();
  std::vector<Value> reads, writes;
  const auto end = static_cast<int32_t>(operations_.size());
  for (Operation& o : operations_) {
    const bool leaves =
        !o.folded.empty() && !o.renames && o.segment == operations_.back().segment &&
        std::ranges::all_of(o.folded, [&](Value v) { return touched.at(storage_of(v)) == 1; });
    if (!leaves) continue;
    std::erase_if(o.writes, [&](Value v) { return std::ranges::count(o.folded, v) > 0; });
    reads.push_back(o.stage);
    writes.insert(writes.end(), o.folded.begin(), o.folded.end());
    o.folds = list;
  }
  if (writes.empty()) return;
  for (size_t p = 0; p < last_contribution_.size(); ++p) {
    const Value g = parameter_gradients_[p];
    if (g && std::ranges::any_of(writes, [&](Value v) { return storage_of(v) == storage_of(g); }))
      last_contribution_[p] = end;
  }
  record("bias_gradient_folds", reads, writes, [list]([[maybe_unused]] const Run& r) {
#if SATURATE_WITH_CUDA
    if (r.ctx.device.is_cuda()) kernels::fold_columns_cuda(r.ctx, *list);
#endif
  });
}

}  // namespace saturate
