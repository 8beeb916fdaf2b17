// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.h"

#include <cstdio>
#include <cstdlib>

#include "apps/commands.h"

namespace saturate::apps {

int run_train(const RunConfig& config) {
  const train::TrainEnd end = train::run_training(config);
  if (end == train::TrainEnd::interrupted_at_start) {
    std::fflush(nullptr);
    std::_Exit(kExitInterrupted);
  }
  return end == train::TrainEnd::interrupted ? kExitInterrupted : 0;
}

}  // namespace saturate::apps
