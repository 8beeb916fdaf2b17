// SPDX-License-Identifier: Apache-2.0
// `saturate compare`: two layouts of one model, run from the same weights on the same batches.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "train/layout_run.h"

namespace saturate::train {

struct ComparedValue {
  std::string what;  // see LayoutDistance
  double distance = 0, bound = 0;
};

struct LayoutComparison {
  std::string a, b;                    // layouts, as --parallel takes them
  std::string where;                   // "2 ranks over nccl, bf16"
  std::string work;                    // model, steps and batches
  std::vector<double> loss_a, loss_b;  // mean of each step
  std::vector<ComparedValue> values;   // in the order of distances()
  bool agree() const;
};

// Collective over the ranks of the launcher; the first rank has the result, others an empty one. A
// layout of one rank runs on the first alone, any other takes all of them. A process without a
// launcher runs layouts of several ranks as lockstep ranks on its CPU. On a CPU everything is in
// f64, unless train.precision says fp32. Batches are of random tokens. The learning rate is
// optimizer.lr from the first step on, and optimizer.eps 1e-3 at least, so that a gradient that is
// rounding alone moves no weight.
//
// Bounds  f64 1e-11, fp32 1e-4 of a tensor's norm. In bf16, fp16 and tf32 layout `a` runs in fp32
//         too: `b` may lie twice as far from that as `a` does (of a tensor that a meets by luck, as
//         far as the median of its kind); distances are those from fp32.
// Errors  those of check_layout(); invalid_argument for layouts that the ranks at hand cannot run.
LayoutComparison compare_layouts(const RunConfig& config, const std::string& a,
                                 const std::string& b, int64_t length, int64_t steps);

// What people read: losses, then where they differ first and how much, or that they agree.
std::string to_text(const LayoutComparison& comparison);

}  // namespace saturate::train
