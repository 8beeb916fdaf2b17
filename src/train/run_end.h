// SPDX-License-Identifier: Apache-2.0
// What a run says last: how it ended and why, what it left and what to do with it.
#pragma once
#include <cstdint>
#include <string>

#include "train/trainer.h"

namespace saturate::train {

struct RunSummary {
  TrainEnd end = TrainEnd::finished;
  std::string reason;    // the limit that was reached, or the signal
  int64_t began_at = 0;  // steps done before this start
  int64_t steps = 0;     // done in all
  double elapsed_s = 0;  // of training, over all resumes
  std::string best;      // "bleu 32.10 at step 4800"; empty: nothing was validated
  std::string folder;    // of the run
  bool language_model = false;
};

// One line without its end.
std::string last_line(const RunSummary& run);

// `text` as a shell takes it for one word.
std::string shell_word(const std::string& text);

}  // namespace saturate::train
