// SPDX-License-Identifier: Apache-2.0
// Layouts against one rank, in f64 on lockstep ranks: whole steps with dropout, clipping and weight
// decay on, tied tables, odd sizes, and batches that leave ranks without rows or labels.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "train/layout_run.h"

namespace saturate::train {

// Models by name, small and as different as the presets and mixers are.
const std::vector<std::string>& harness_models();

struct LayoutCase {
  std::string model;   // of harness_models()
  std::string layout;  // as --parallel takes it, with dp
  int64_t micro_batches = 4;
  std::string variant = "";  // "frozen", "averaged", "undropped", ...: what differs in the options
  // What a failing test prints and LAYOUT_CASE reads.
  std::string text() const;
};
LayoutCase case_of(const std::string& text);

int ranks_of(const LayoutCase& c);
LayoutTask task_of(const LayoutCase& c);
// Why this case cannot run: the refusal of check_layout(); "" when it can.
std::string refusal_of(const LayoutCase& c);

// One rank's result with the same micro-batches; made once a model, variant and number of them.
const LayoutResult& reference_of(const LayoutCase& c);

// What each rank does with its communicator and the task; run_layout() unless something is tampered
// with.
using Body = std::function<LayoutResult(parallel::Communicator&, const LayoutTask&)>;
// On lockstep ranks. Rank 0's result.
LayoutResult result_of(const LayoutCase& c, const Body& body = run_layout);

// "" when all of `distances` are within `bound`, else the first that is not.
std::string first_beyond(const std::vector<LayoutDistance>& distances, double bound);
// The same of a case against its reference, with the bound of f64.
constexpr double kBound = 1e-11;
std::string mistake_of(const LayoutCase& c);

}  // namespace saturate::train
