// SPDX-License-Identifier: Apache-2.0
#include "train/trainer.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "apps/commands.h"
#include "parallel/launch.h"
#include "plan/automatic.h"
#include "train/model_setup.h"

namespace saturate::apps {

int run_train(const RunConfig& config) {
  const train::TrainEnd end =
      train::run_training(config, [](RunConfig& c, parallel::Communicator& ranks, Device device) {
        const bool lm = train::is_language_model(c);
        plan::take_best_layout(c, lm ? std::min<int64_t>(train::longest_sentence(c), 1024) : 32,
                               ranks, parallel::current_launch().local_size, device);
      });
  if (end == train::TrainEnd::interrupted_at_start) {
    std::fflush(nullptr);
    std::_Exit(kExitInterrupted);
  }
  return end == train::TrainEnd::interrupted ? kExitInterrupted : 0;
}

}  // namespace saturate::apps
