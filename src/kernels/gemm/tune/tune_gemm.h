// SPDX-License-Identifier: Apache-2.0
// Finds the fastest implementation and configuration for one matrix product by measuring.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/gemm/tune/configured.h"
#include "kernels/gemm/tune/table.h"
#include "runtime/stream.h"

namespace saturate::kernels {

struct TuneRow {
  std::string impl, config;
  double ms = 0;
  int samples = 0;           // behind the median
  double predicted_ms = -1;  // by the model; negative: none
};
struct TuneRefusal {
  std::string impl, config, reason;
};
struct TuneResult {
  GemmKey key;
  std::vector<TuneRow> rows;  // fastest first; those with fewer samples after those with more
  std::vector<TuneRefusal> refused;
  GemmChoice choice;
  double compile_seconds = 0, measure_seconds = 0;
};

// "compiling", 12, 400
using TunePhase = std::function<void(std::string_view phase, size_t done, size_t total)>;

// Measures every implementation of matmul's list and every configuration that fits `key`, after
// each has passed a check against double precision, and chooses the fastest; a winner less than 2%
// ahead of what would run anyway is not worth a changed result.
//
// Stream    works on `stream` (ctx.stream is its handle) and waits for it; not during a capture.
// Order     which one wins may change from call to call; the product itself does not.
// Errors    unsupported when nothing fits; device.
TuneResult tune_gemm(const Context& ctx, const Stream& stream, const GemmKey& key, Search search,
                     const TunePhase& phase);

}  // namespace saturate::kernels
