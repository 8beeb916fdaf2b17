// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <exception>

#include "parallel/communicator.h"

namespace saturate::train {

// What the ranks are at for as long as this lives; training again afterwards.
class RankAction {
 public:
  static constexpr char kTraining[] = "training";

  RankAction(parallel::Communicator& ranks, const char* action) : ranks_(ranks) {
    ranks_.set_action(action, parallel::Pace::any);
  }
  ~RankAction() {
    if (std::uncaught_exceptions() == 0) ranks_.set_action(kTraining, parallel::Pace::steady);
  }
  RankAction(const RankAction&) = delete;

 private:
  parallel::Communicator& ranks_;
};

}  // namespace saturate::train
