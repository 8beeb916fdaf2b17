// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.h"

#include "apps/commands.h"

namespace saturate::apps {

int run_train(const RunConfig& config) {
  return train::run_training(config) == train::TrainEnd::interrupted ? kExitInterrupted : 0;
}

}  // namespace saturate::apps
