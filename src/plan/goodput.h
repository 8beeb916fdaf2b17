// SPDX-License-Identifier: Apache-2.0
// How much of the time a run that fails now and then does useful work.
#pragma once
#include "plan/machine.h"

namespace saturate::plan {

struct FailureModel {
  double mtbf_s = 0;        // mean time between failures of the whole run
  double checkpoint_s = 0;  // in which no step runs
  double restart_s = 0;     // from a failure to work again; failures do not stop for it
};

// Share of the time that is useful work when a checkpoint is written after every `interval_s` of it
// and failures come at random (exponential), in checkpoints and restarts too; what was done since the
// last checkpoint is lost. 0 when the interval is never got through.
// Source: Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps",
// FGCS 22, 2006, equation 13 with its complete cost function.
double goodput(const FailureModel& model, double interval_s);

// The interval with the highest goodput, within a second. Young's sqrt(2 checkpoint mtbf) is its
// first approximation.
double best_interval_s(const FailureModel& model);

// Of `devices` of a machine whose run writes so many bytes a checkpoint, each host its part.
FailureModel failure_model(const Machine& machine, int devices, double checkpoint_bytes);

}  // namespace saturate::plan
