// SPDX-License-Identifier: Apache-2.0
// One matrix product to be tuned: its data on the GPU, the truth about some of its rows, and a
// clock.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "kernels/gemm/tune/configured.h"
#include "kernels/gemm/tune/table.h"
#include "runtime/memory.h"
#include "runtime/stream.h"

namespace saturate::kernels {

/// Operands uniform in [-1, 1) (zeros would run faster), in as many sets as it takes to leave the
/// L2 cache twice over. Owns about 2 L2 + one set of device memory.
class TuneProblem {
 public:
  // ctx.stream must be `stream`'s. Errors: out_of_memory.
  TuneProblem(const Context& ctx, const Stream& stream, const GemmKey& key, int64_t l2_bytes);

  MatmulArgs args(size_t set) const;
  const MatmulArgs first() const { return args(0); }
  using Launch = std::function<void(const MatmulArgs&)>;

  // "" or what is wrong with the rows that were computed in double precision (all rows of a small
  // problem, else eight of them): the bound is that of a sum of k products in fp32, plus the
  // rounding of the operands to 10 bits for TF32. D starts as NaN, or as a known C.
  std::string check(const Launch& launch) const;

  // One timing of each launch on the next set of operands, in ms; short ones are repeated to at
  // least 100 us. Everything is enqueued before anything is waited for.
  std::vector<double> time_once(const std::vector<const Launch*>& launches,
                                const std::vector<double>& expected_ms);

  // Runs `launch` for at least `seconds`, so that clocks settle.
  void warm_up(const Launch& launch, double seconds);

 private:
  // From the values A and B are filled with, over and over, and the bias (zeros for none).
  void make_reference(const std::vector<float>& a, const std::vector<float>& b,
                      const std::vector<double>& bias);

  const Context& ctx_;
  const Stream& stream_;
  GemmKey key_;
  int64_t a_bytes_ = 0, b_bytes_ = 0, d_bytes_ = 0;  // of one set
  size_t sets_ = 1, next_set_ = 0;
  Buffer a_, b_, d_, bias_;
  std::vector<int64_t> rows_;
  std::vector<double> expected_, bound_;
  std::vector<Event> events_;
};

}  // namespace saturate::kernels
