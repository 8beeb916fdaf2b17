// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <functional>

#include "base/config.h"
#include "parallel/communicator.h"

namespace saturate::train {

// interrupted_at_start: before the first step; a thread that nothing can stop may still be at work,
// so that the process must leave by std::_Exit.
enum class TrainEnd { finished, stopped_early, interrupted, interrupted_at_start };

// A whole run: prepares text, model and step, trains until a limit of the configuration, validates,
// saves, reports. SIGINT, SIGTERM, and SIGHUP and SIGPIPE unless they were ignored at the start,
// end it after a checkpoint. Under a launcher every rank calls it. Errors: everything a user can
// cause is an Error with file, line or key and remedy; checkpoints and metrics written before stay
// whole. `choose`, where there is one, settles what parallel = auto stands for, on all ranks, before
// anything is made.
using ChooseLayout = std::function<void(RunConfig&, parallel::Communicator&, Device)>;
TrainEnd run_training(const RunConfig& config, const ChooseLayout& choose = {});

}  // namespace saturate::train
