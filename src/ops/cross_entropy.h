// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ops/collectives.h"
#include "ops/tape.h"

namespace saturate::ops {

struct LossSpec {
  const int32_t* labels = nullptr;  // (rows), -1: no loss
  int64_t vocab = 0;                // columns of the logits that count
  float label_smoothing = 0.0f;
  float grad_scale = 1.0f;              // 1 / token budget: keeps gradients near those of a mean
  const float* device_scale = nullptr;  // the loss scale
  double* totals = nullptr;   // loss, nll and token sums are added here (StepState::totals);
                              // null: another rank, which has the same rows, does
  double* routing = nullptr;  // AuxiliaryLosses::routing of the layers before it
  void* nll = nullptr;  // (rows), in wide_type: the loss of each without smoothing; null: nowhere
  // Ranks with an equal part each of the logits' columns, in the order of positions. Nobody named:
  // the columns are whole.
  GroupOfRanks vocabulary = {};
};

// The end of a step: where the loss is computed. In training the logits become their own gradient
// in place, so no second copy exists, and the tape's backward() starts from it.
//
// Shapes    logits (rows, at least vocab or this rank's part); further columns get gradient 0.
// Ranks     gather 4 numbers a row of each rank, from which all compute the same loss.
// Errors    invalid_argument when the operation runs, as the kernel says; collective.
// Kernel    kernels/loss/cross_entropy.h
void cross_entropy(Tape& tape, Value logits, const LossSpec& spec);

// The end of it: adds the rows' loss and nll to spec.totals, if there are any. `type` is that of the logits.
//
// Shapes    loss and nll (1, rows).
void record_loss_totals(Tape& t, Value loss, Value nll, const LossSpec& spec, DType type);

}  // namespace saturate::ops
